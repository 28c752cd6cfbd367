"""Blocks in bands of 8 rows: those at work at one time share more of A and B in L2."""

from functools import partial

from normlab.kernels.sgemm import buffered, tiling
from normlab.kernels.sgemm.product import ProductStep
from normlab.kernels.sgemm.step_8_z_order import TILING
from normlab.stages.lanes import blocks_in_bands

BAND = 8  # rows of blocks

STEP = ProductStep(
    name="block_order",
    summary="blocks in bands: what runs together shares L2",
    run=partial(buffered.run, TILING, blocks_in_bands(BAND)),
    tile=(tiling.ROWS, tiling.COLUMNS, tiling.DEPTH),
    tile_seconds=tiling.TILE_SECONDS,
)
