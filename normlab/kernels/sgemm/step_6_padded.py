"""Four elements of padding behind each k of A: its transposed stores no longer meet in a bank.

Two lanes of a pair store 4 k's apart. With 132 elements a k that is 528 elements, 16 banks further on; and 16 bytes
still divide the row.
Moves: what step 5 moves, in 64 wavefronts for the stores of a tile where it was 96.
Takes: 127 registers, 8320 bytes; 2 blocks a multiprocessor, bound by registers.
Bound by: the loads from shared memory, as before: 1280 wavefronts a tile, where its FMA take 1024 clocks.
Measured: 34.5 TFLOP/s at 4096 x 4096 x 4096 on an H200, 0.67 of cuBLAS in float32; step 5 has 34.2: the stores are
a twentieth of the wavefronts.
Next: let the lanes of a warp want fewer different elements.
"""

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
    ways=(partial(tiling.plan, "padded", TILING),),
    tile=tiling.TILE,
    tile_seconds=tiling.TILE_SECONDS,
)
