"""Blocks in bands of 8 rows: those at work at one time share more of A and B in L2.

Moves: for 8192 x 8192 x 8192, 264 blocks at a time read 5 + 64 rows and columns of tiles in the order of step 9, and in
bands 8 + 33: of what they read L2 gives 92 % again, instead of 87 % (`model.l2_hit`); as blocks drift apart,
90 % and 75 % were measured (record l2_h200). For 4096, where 264 blocks are a little more than a band, no
more than 91 % instead of 92 % could be (89 % and 86 % were).
Takes: 125 registers, 16640 bytes; 2 blocks a multiprocessor, bound by registers.
Bound by: as step 9. What comes from memory, some 0.2 of 4.8 TB/s in the worse order, is not what an H200 waits for.
Measured: 43.6 TFLOP/s at 4096 x 4096 x 4096 on an H200, 0.85 of cuBLAS in float32, 44.4 at 8192: 5 to 6 % less than
step 9 at any size. It is not the order: of the 512 FMA of its loop, which is the same but for registers, the compiler
has 43 read all three operands from one of the two banks of registers, which takes a clock more, and in step 9 one.
Next: fewer instructions that are no FMA, and no registers for what is under way.
"""

from functools import partial

from normlab.kernels.sgemm import buffered, tiling
from normlab.kernels.sgemm.product import ProductStep
from normlab.kernels.sgemm.step_8_z_order import TILING
from normlab.stages.lanes import blocks_in_bands

BAND = 8  # rows of blocks

STEP = ProductStep(
    name="block_order",
    summary="blocks in bands: what runs together shares L2",
    ways=(partial(buffered.plan, "block_order", TILING, blocks_in_bands(BAND)),),
    tile=tiling.TILE,
    tile_seconds=tiling.TILE_SECONDS,
)
