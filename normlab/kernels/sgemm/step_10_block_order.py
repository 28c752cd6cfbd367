"""Order the blocks in bands of 8 rows. The kernel is `buffered`'s, with step 9's tiles.

Idea: blocks that run at the same time share rows of A and columns of B in L2. In bands, the blocks of a wave form a
rectangle instead of a few long rows, so they need fewer different rows and columns.
Moves: at 8192 x 8192 x 8192, a wave of 264 blocks reads 5 + 64 rows and columns of tiles in the order of step 9, and in
bands 8 + 33. L2 then gives 92 % of the reads instead of 87 % (`roofline.l2_hit`). Because blocks drift apart, 90 % and
75 % were measured (record l2_h200). At 4096 the two orders differ by 1 %.
Takes: 125 registers, 16640 bytes; 2 blocks per multiprocessor, bound by registers.
Bound by: as step 9. An H200 does not wait for memory here: the worse order takes some 0.2 of its 4.8 TB/s.
Measured: 43.6 TFLOP/s at 4096 x 4096 x 4096 on an H200, 0.85 of cuBLAS in float32, 44.4 at 8192: 5 to 6 % less than
step 9 at any size. The order is not the reason. An FMA that reads all three operands from one of the two register banks
takes a clock more; the compiler made 43 such FMA of the loop's 512 here, and one in step 9.
Next: fewer instructions other than FMA, and no registers for elements under way.
"""

from functools import partial

from normlab.kernels.sgemm import buffered
from normlab.kernels.sgemm.product import ProductStep
from normlab.kernels.sgemm.step_8_z_order import TILING
from normlab.stages.lanes import blocks_in_bands

BAND = 8  # rows of blocks

STEP = ProductStep(
    name="block_order",
    summary="blocks in bands: what runs together shares L2",
    ways=(partial(buffered.plan, "block_order", TILING, blocks_in_bands(BAND)),),
)
