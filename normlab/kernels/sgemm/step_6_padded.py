"""Pad each k of A's tile by four elements, so that its transposed stores meet in no bank. The kernel is `tiling`'s.

Idea: two lanes of a pair store 4 k's apart. With 132 elements per k that is 528 elements, which is 16 banks further on.
Padding by four, not by one, keeps every k of the tile at a multiple of 16 bytes for the loads.
Moves: what step 5 moves, in 64 wavefronts for the stores of a tile where step 5 has 96.
Takes: 127 registers, 8320 bytes; 2 blocks per multiprocessor, bound by registers.
Bound by: the loads from shared memory, as before: 1280 wavefronts per tile, whose FMA take 1024 clocks.
Measured: 34.5 TFLOP/s at 4096 x 4096 x 4096 on an H200, 0.67 of cuBLAS in float32. Step 5 has 34.2: the stores are a
twentieth of the wavefronts.
Next: let the lanes of a warp need fewer different elements.
"""

from functools import partial

from normlab.kernels.sgemm import tiling
from normlab.kernels.sgemm.product import ProductStep
from normlab.stages.lanes import threads_in_rows
from normlab.stages.thread_tile import RUN, Share

SHARE = Share(runs=2, span=RUN)  # eight neighbouring rows, or columns, in two runs of four
TILING = tiling.Tiling(
    a_row=tiling.ROWS + 4,  # by four: 16 bytes still divide a k, so loads of A stay vectors
    rows=SHARE,
    columns=SHARE,
    place=threads_in_rows(tiling.COLUMNS // tiling.SIDE, tiling.SIDE),
)

STEP = ProductStep(
    name="padded",
    summary="A's tile padded: its stores meet in no bank",
    ways=(partial(tiling.plan, "padded", TILING),),
)
