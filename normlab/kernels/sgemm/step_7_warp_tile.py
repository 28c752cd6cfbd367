"""A warp takes a tile of its own, its lanes 4 x 8 in it."""

from functools import partial

from normlab.kernels.sgemm import tiling
from normlab.kernels.sgemm.product import ProductStep
from normlab.stages.lanes import lanes_in_rows

DOWN, ACROSS = 4, 8  # lanes of a warp
TILING = tiling.of_warps(DOWN, ACROSS, lanes_in_rows(DOWN))

STEP = ProductStep(
    name="warp_tile",
    summary="a warp's lanes 4 x 8: fewer addresses a load",
    run=partial(tiling.run, TILING),
    tile=(tiling.ROWS, tiling.COLUMNS, tiling.DEPTH),
    tile_seconds=tiling.TILE_SECONDS,
)
