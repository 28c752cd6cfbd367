"""Two buffers: the next tile travels while this one is multiplied."""

from functools import partial

from normlab.kernels.sgemm import buffered, tiling
from normlab.kernels.sgemm.product import ProductStep
from normlab.kernels.sgemm.step_8_z_order import TILING
from normlab.stages.lanes import blocks_in_rows

STEP = ProductStep(
    name="double_buffer",
    summary="the next tile travels while this one is multiplied",
    run=partial(buffered.run, TILING, blocks_in_rows),
    tile=(tiling.ROWS, tiling.COLUMNS, tiling.DEPTH),
    tile_seconds=tiling.TILE_SECONDS,
)
