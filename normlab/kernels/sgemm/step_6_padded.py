"""Four elements of padding behind each k of A: its transposed stores no longer meet in a bank."""

from functools import partial

from normlab.kernels.sgemm import tiling
from normlab.kernels.sgemm.product import ProductStep
from normlab.stages.lanes import threads_in_rows
from normlab.stages.thread_tile import RUN, Share

SHARE = Share(runs=2, span=RUN)  # eight neighbours
TILING = tiling.Tiling(
    a_row=tiling.ROWS + 4,
    rows=SHARE,
    columns=SHARE,
    place=threads_in_rows(tiling.COLUMNS // tiling.SIDE, tiling.SIDE),
)

STEP = ProductStep(
    name="padded",
    summary="A's tile padded: its stores meet in no bank",
    run=partial(tiling.run, TILING),
    tile=(tiling.ROWS, tiling.COLUMNS, tiling.DEPTH),
    tile_seconds=tiling.TILE_SECONDS,
)
