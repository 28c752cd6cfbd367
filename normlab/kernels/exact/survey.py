"""The columns at risk of many norms, in one launch: one block per norm.

The norms' parameters lie anywhere in the GPU's memory, and they are more than a launch has arguments for. So the kernel
gets the stretch of memory that holds all of them as one array, and a table of offsets.
"""

from typing import Any

from normlab.engine import cuda
from normlab.kernels.exact.choose import MAX_THREADS, list_columns
from normlab.kernels.exact.risk import Limits
from normlab.stages.vector import whole_warps


@cuda.jit
def survey_columns(table, weights, biases, spreads, smallest, normal, ratio, columns, counts):
    """List the columns at risk of each norm, and write how many there are into counts, (norms,), int64.

    table: (norms, 5), int64: each norm's number of columns n2, and where its parts begin: weight in `weights`, bias in
    `biases`, spread in `spreads`, and n2 slots in `columns`. weights, biases: all parameters, or None. smallest,
    normal, ratio: `Limits`. columns: int32.
    """
    norm = cuda.blockIdx.x
    n2 = table[norm, 0]
    start = table[norm, 4]
    found = list_columns(
        n2, weights, table[norm, 1], biases, table[norm, 2], spreads[table[norm, 3]], smallest, normal, ratio,
        columns, start, start + n2,
    )  # fmt: skip
    if cuda.threadIdx.x == 0:
        counts[norm] = found


def launch_survey(
    launch: Any, table: Any, n2: int, weights: Any, biases: Any, spreads: Any, limits: Limits, columns: Any, counts: Any
) -> Any:
    """Queue the kernel, or whatever else `launch` does with it. n2: the largest in the table."""
    threads = min(MAX_THREADS, whole_warps(n2))
    return launch(survey_columns, table.shape[0], threads, table, weights, biases, spreads, *limits, columns, counts)
