"""Sixteen bytes an instruction, and A transposed on its way into shared memory.

Of A a thread wants the elements of 8 rows for one k. Transposed, they lie side by side.
Moves: the same bytes with a quarter of the requests: a thread loads one vector of A and one of B for each 8 k's. Where
rows are no multiple of 16 bytes, of 8 or of 4, as the widths say.
Takes: 127 registers, 8 KB; 2 blocks of 256 threads a multiprocessor, bound by registers.
Bound by: shared memory. For a k of a warp, 16 clocks of FMA, 20 wavefronts: 4 for A, and for B 16, a half of them
conflicts. And A's vectors are stored as four elements 128 apart: lanes in pairs have their elements 512 apart, in one
bank. Of 591 instructions 512 are FMA.
Measured: 34.2 TFLOP/s at 4096 x 4096 x 4096 on an H200, 0.67 of cuBLAS in float32.
Next: those stores.
"""

from functools import partial

from normlab.kernels.sgemm import tiling
from normlab.kernels.sgemm.product import ProductStep
from normlab.stages.lanes import threads_in_rows
from normlab.stages.thread_tile import RUN, Share

SHARE = Share(runs=2, span=RUN)  # eight neighbours
TILING = tiling.Tiling(
    a_row=tiling.ROWS,
    rows=SHARE,
    columns=SHARE,
    place=threads_in_rows(tiling.COLUMNS // tiling.SIDE, tiling.SIDE),
)

STEP = ProductStep(
    name="vectors",
    summary="16 bytes an instruction, A transposed in shared memory",
    ways=(partial(tiling.plan, "vectors", TILING),),
    tile=tiling.TILE,
    tile_seconds=tiling.TILE_SECONDS,
)
