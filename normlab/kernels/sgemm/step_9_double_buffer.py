"""Two buffers: the next tile travels while this one is multiplied.

Global memory -> registers -> the other half of shared memory; and in the same way shared memory -> registers: the next
k's elements are loaded before this one's are multiplied. The 16 warps multiply each tile for 2048 clocks, longer than
a load from global memory takes.
Moves: the same, with one barrier a tile where there were two: the half that is written is not the one that is read.
Takes: 128 registers, 16640 bytes; 2 blocks a multiprocessor, bound by registers.
Bound by: FMA's share of the instructions: 512 of 606. The halves' addresses have made it a little smaller.
Measured: 46.2 TFLOP/s at 4096 x 4096 x 4096 on an H200, 0.90 of cuBLAS in float32.
Next: which blocks are at work at the same time.
"""

from functools import partial

from normlab.kernels.sgemm import buffered, tiling
from normlab.kernels.sgemm.product import ProductStep
from normlab.kernels.sgemm.step_8_z_order import TILING
from normlab.stages.lanes import blocks_in_rows

STEP = ProductStep(
    name="double_buffer",
    summary="the next tile travels while this one is multiplied",
    ways=(partial(buffered.plan, "double_buffer", TILING, blocks_in_rows),),
    tile=tiling.TILE,
    tile_seconds=tiling.TILE_SECONDS,
)
