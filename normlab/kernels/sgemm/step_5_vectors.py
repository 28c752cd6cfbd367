"""Move 16 bytes per instruction, and transpose A on its way into shared memory. The kernel is `tiling`'s.

Idea: tiles and threads are those of step 4. For one k a thread needs the elements of 8 rows of A. In the transposed
tile these lie side by side, so two loads of 16 bytes get them.
Moves: the same bytes with a quarter of the requests: per 8 k's a thread loads one vector of A and one of B from global
memory. If the rows' length is not a multiple of 16 bytes, the vectors have 8 or 4 bytes (`Product.widths`).
Takes: 127 registers, 8 KB; 2 blocks of 256 threads per multiprocessor, bound by registers.
Bound by: shared memory. Per k the FMA of a warp take 16 clocks and its loads 20 wavefronts: 4 for A and 16 for B, half
of them bank conflicts. The stores of A conflict, too: a thread stores a vector of A as four elements, 128 apart, and
the elements of two neighbouring lanes are 512 apart, in the same bank. Of the main loop's 591 instructions 512 are FMA.
Measured: 34.2 TFLOP/s at 4096 x 4096 x 4096 on an H200, 0.67 of cuBLAS in float32.
Next: the conflicting stores of A.
"""

from functools import partial

from normlab.kernels.sgemm import tiling
from normlab.kernels.sgemm.product import ProductStep
from normlab.stages.lanes import threads_in_rows
from normlab.stages.thread_tile import RUN, Share

SHARE = Share(runs=2, span=RUN)  # eight neighbouring rows, or columns, in two runs of four
TILING = tiling.Tiling(
    a_row=tiling.ROWS,  # no padding: the stores of A have bank conflicts, which step 6 removes
    rows=SHARE,
    columns=SHARE,
    place=threads_in_rows(tiling.COLUMNS // tiling.SIDE, tiling.SIDE),
)

STEP = ProductStep(
    name="vectors",
    summary="16 bytes per instruction, A transposed in shared memory",
    ways=(partial(tiling.plan, "vectors", TILING),),
)
