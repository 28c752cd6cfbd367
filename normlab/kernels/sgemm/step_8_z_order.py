"""The lanes of a warp tile in z-order."""

from functools import partial

from normlab.kernels.sgemm import tiling
from normlab.kernels.sgemm.product import ProductStep
from normlab.stages.lanes import lanes_in_z_order

DOWN, ACROSS = 4, 8  # lanes of a warp
TILING = tiling.of_warps(DOWN, ACROSS, lanes_in_z_order)

STEP = ProductStep(
    name="z_order",
    summary="a warp's lanes in z-order: neighbours share addresses",
    run=partial(tiling.run, TILING),
    tile=(tiling.ROWS, tiling.COLUMNS, tiling.DEPTH),
    tile_seconds=tiling.TILE_SECONDS,
)
