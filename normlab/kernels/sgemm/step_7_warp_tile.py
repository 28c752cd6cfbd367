"""Give each warp a tile of its own in the block's tile of C, with its lanes 4 x 8 in it. The kernel is `tiling`'s.

Idea: for one k, two rows of 16 threads read 16 elements of A and 128 of B; lanes in 4 x 8 read 32 and 64. A thread's
columns are two runs of four with 32 columns in between, so the lanes of a row read 128 bytes side by side.
Moves: 12 wavefronts per k and warp, 4 for A and 8 for B, where step 6 has 20. Lanes in 8 x 4 come to the same, with A
and B exchanged.
Takes: 123 registers, 8320 bytes; 2 blocks per multiprocessor, bound by registers.
Bound by: no longer shared memory: 832 wavefronts per tile, whose FMA take 1024 clocks. Of 591 instructions 512 are FMA,
so the others take 13 % of the clocks. No warp multiplies while the block waits for its next tile.
Measured: 36.2 TFLOP/s at 4096 x 4096 x 4096 on an H200, 0.71 of cuBLAS in float32.
Next: which lane stands where in the 4 x 8.
"""

from functools import partial

from normlab.kernels.sgemm import tiling
from normlab.kernels.sgemm.product import ProductStep
from normlab.stages.lanes import lanes_in_rows

DOWN, ACROSS = 4, 8  # lanes of a warp: nearly square, so that they share as many rows and columns as possible
TILING = tiling.of_warps(DOWN, ACROSS, lanes_in_rows(DOWN))

STEP = ProductStep(
    name="warp_tile",
    summary="a warp's lanes 4 x 8: fewer addresses per load",
    ways=(partial(tiling.plan, "warp_tile", TILING),),
)
