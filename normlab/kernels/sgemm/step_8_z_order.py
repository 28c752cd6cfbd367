"""The lanes of a warp tile in z-order.
"""

from functools import partial

from normlab.kernels.sgemm import tiling
from normlab.kernels.sgemm.product import ProductStep
from normlab.stages.lanes import lanes_in_z_order, warps_in_rows
from normlab.stages.thread_tile import RUN, Share


DOWN, ACROSS = 4, 8  # lanes of a warp
WARP_ROWS, WARP_COLUMNS = DOWN * tiling.SIDE, ACROSS * tiling.SIDE
TILING = tiling.Tiling(
    a_row=tiling.ROWS + 4,
    rows=Share(runs=2, span=DOWN * RUN),
    columns=Share(runs=2, span=ACROSS * RUN),
    place=warps_in_rows(tiling.COLUMNS // WARP_COLUMNS, WARP_ROWS, WARP_COLUMNS, RUN, lanes_in_z_order),
)

STEP = ProductStep(
    name="z_order",
    summary="a warp's lanes in z-order: neighbours share addresses",
    run=partial(tiling.run, TILING),
    tile=(tiling.ROWS, tiling.COLUMNS, tiling.DEPTH),
    tile_seconds=tiling.TILE_SECONDS,
)
