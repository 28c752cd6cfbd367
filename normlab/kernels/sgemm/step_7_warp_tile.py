"""A warp takes a tile of its own, its lanes 4 x 8 in it.

Two rows of 16 threads read 16 elements of A and 128 of B for a k. Lanes in 4 x 8 read 32 and 64. And a thread's columns
are two runs of four with 32 in between: the lanes of a row then read 128 bytes side by side, without a conflict.
Moves: 12 wavefronts for a k of a warp, where there were 20: 4 for A, 8 for B. Lanes in 8 x 4 come to the same, with A
and B exchanged.
Takes: 123 registers, 8320 bytes; 2 blocks a multiprocessor, bound by registers.
Bound by: no longer shared memory: 832 wavefronts a tile for 1024 clocks of FMA. Of 591 instructions 512 are FMA, and
13 % of the clocks go to the others; and nobody multiplies while the block waits for its next tile.
Measured: 36.2 TFLOP/s at 4096 x 4096 x 4096 on an H200, 0.71 of cuBLAS in float32.
Next: which lane stands where in the 4 x 8.
"""

from functools import partial

from normlab.kernels.sgemm import tiling
from normlab.kernels.sgemm.product import ProductStep
from normlab.stages.lanes import lanes_in_rows

DOWN, ACROSS = 4, 8  # lanes of a warp
TILING = tiling.of_warps(DOWN, ACROSS, lanes_in_rows(DOWN))

STEP = ProductStep(
    name="warp_tile",
    summary="a warp's lanes 4 x 8: fewer addresses a load",
    ways=(partial(tiling.plan, "warp_tile", TILING),),
    tile=tiling.TILE,
    tile_seconds=tiling.TILE_SECONDS,
)
