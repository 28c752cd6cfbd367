"""Fetch the next tiles while these are multiplied, with two buffers. The kernel is `buffered`'s, with step 8's tiles.

Idea: shared memory has two halves. Before a thread multiplies the tiles in one half, it starts to load its elements of
the next tiles from global memory into registers; after it has multiplied, it stores them to the other half. It loads
from shared memory in the same way: the next k's elements before it multiplies this k's. The 16 warps of a
multiprocessor multiply their tiles for 2048 clocks, longer than a load from global memory takes.
Moves: the same, with one barrier per tile instead of two, because threads never write to the half that is being read.
Takes: 128 registers, 16640 bytes; 2 blocks per multiprocessor, bound by registers.
Bound by: FMA's share of the instructions, 512 of 606. The addresses of two halves take a few instructions more.
Measured: 46.2 TFLOP/s at 4096 x 4096 x 4096 on an H200, 0.90 of cuBLAS in float32.
Next: which blocks are at work at the same time.
"""

from functools import partial

from normlab.kernels.sgemm import buffered
from normlab.kernels.sgemm.product import ProductStep
from normlab.kernels.sgemm.step_8_z_order import TILING
from normlab.stages.lanes import blocks_in_rows

STEP = ProductStep(
    name="double_buffer",
    # the order of the blocks is still that of step 8, so that only the buffers differ
    summary="the next tile travels while this one is multiplied",
    ways=(partial(buffered.plan, "double_buffer", TILING, blocks_in_rows),),
)
