"""How many columns of many norms are at risk, in one launch: a block for each norm; nothing is kept.

The norms' parameters lie anywhere in the GPU's memory, more than a launch has arguments for. So the kernel gets the
stretch of memory they all lie in as one array, and a table that says where in it each of them begins.
"""

from typing import Any

import numpy as np

from normlab.engine import cuda
from normlab.kernels.exact.choose import MARGIN, MAX_THREADS, NEAR
from normlab.kernels.exact.risk import RATIO, at_risk
from normlab.stages.recompute import element
from normlab.stages.vector import whole_warps


@cuda.jit
def survey_columns(table, weights, biases, smallest, ratio, margin, counts, survey):
    """Write of each norm how many columns are at risk, as `choose_columns` does, and then which survey has.

    table: (norms, 4), int64: of each norm its columns, and where in the arrays its weight, its bias and its counts
    begin. weights, biases: all parameters, or None. smallest, ratio, margin: as for `choose_columns`. counts: int64;
    three belong to a norm: the number, one that is left alone, and `survey`, an int64 that tells surveys apart.
    """
    norm = cuda.blockIdx.x
    n2 = table[norm, 0]
    found = 0
    near = 0
    top = 0
    while top < n2:
        column = top + cuda.threadIdx.x
        risky = 0
        nearly = 0
        if column < n2:
            gamma = element(weights, table[norm, 1] + column)
            beta = element(biases, table[norm, 2] + column)
            risky = int(at_risk(gamma, beta, smallest, ratio))
            nearly = int(at_risk(gamma, beta, margin * smallest, ratio / margin))
        found += cuda.syncthreads_count(risky)
        near += cuda.syncthreads_count(nearly)
        top += cuda.blockDim.x
    if cuda.threadIdx.x == 0:
        own = table[norm, 3]
        counts[own] = found + NEAR * near
        cuda.threadfence_system()  # a host that sees the next one sees this one
        counts[own + 2] = survey


def launch_survey(
    launch: Any, table: Any, n2: int, weights: Any, biases: Any, smallest: Any, counts: Any, survey: int
) -> Any:
    """Queue the kernel, or whatever else `launch` does with it. n2: the largest in the table."""
    threads = min(MAX_THREADS, whole_warps(n2))
    limits = smallest, smallest.dtype.type(RATIO), smallest.dtype.type(MARGIN)
    return launch(survey_columns, table.shape[0], threads, table, weights, biases, *limits, counts, np.int64(survey))
