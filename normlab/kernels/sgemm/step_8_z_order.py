"""The lanes of a warp tile in z-order.

Shared memory takes on 8 lanes of a 16-byte load at a time, but 16 where neighbours (lane ^ 1, or all lane ^ 2) want the
same. In rows of 8 that is so for A and never for B; in z-order lanes share a row of C with lane ^ 1 and a column with
lane ^ 2, so that it holds for both.
Moves: 8 wavefronts for a k of a warp, where there were 12: 4 for A and 4 for B.
Takes: 123 registers, 8320 bytes; 2 blocks a multiprocessor, bound by registers.
Bound by: the wait for the next tile, and FMA's share of the instructions, 512 of 590.
Measured: 36.3 TFLOP/s at 4096 x 4096 x 4096 on an H200, 0.71 of cuBLAS in float32; step 7 has 36.2, at 8192 as much:
the same loop, with an instruction less.
Next: fetch the next tile while this one is multiplied.
"""

from functools import partial

from normlab.kernels.sgemm import tiling
from normlab.kernels.sgemm.product import ProductStep
from normlab.stages.lanes import lanes_in_z_order

DOWN, ACROSS = 4, 8  # lanes of a warp
TILING = tiling.of_warps(DOWN, ACROSS, lanes_in_z_order)

STEP = ProductStep(
    name="z_order",
    summary="a warp's lanes in z-order: neighbours share addresses",
    ways=(partial(tiling.plan, "z_order", TILING),),
    tile=tiling.TILE,
    tile_seconds=tiling.TILE_SECONDS,
)
