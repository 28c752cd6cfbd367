"""The columns at risk of many norms, in one launch: one block per norm.

The norms' parameters lie anywhere in the GPU's memory, and they are more than a launch has arguments for. So the kernel
gets the stretch of memory that holds all of them as one array, and a table of offsets.
"""

from typing import Any, NamedTuple

import numpy as np

from normlab.engine import DeviceArray, cuda
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


class Asked(NamedTuple):
    """A norm that is asked about: how many columns it has, and the addresses of its parameters and of its spread.

    Without a weight or a bias, its address is any that the norms have.
    """

    n2: int
    weight: int
    bias: int
    spread: int


def tabulate(norms: list[Asked], dtype: np.dtype, wide: np.dtype, device: int) -> tuple[np.ndarray, Any, Any]:
    """Return the kernel's table, and the stretches of memory that hold all parameters and all spreads as arrays.

    dtype: the parameters'. wide: the spreads'. device: the GPU's number.
    """
    sizes, *places = np.array(norms, np.int64).T
    lowest, spread = min(places[0].min(), places[1].min()), places[2].min()
    weights, biases = ((place - lowest) // dtype.itemsize for place in places[:2])
    spreads = (places[2] - spread) // wide.itemsize
    length = max((weights + sizes).max(), (biases + sizes).max())
    table = np.stack([sizes, weights, biases, spreads, np.cumsum(sizes) - sizes], axis=1)
    parameters = DeviceArray(int(lowest), (int(length),), dtype, device, None)
    return table, parameters, DeviceArray(int(spread), (int(spreads.max()) + 1,), wide, device, None)


def launch_survey(
    launch: Any, table: Any, n2: int, weights: Any, biases: Any, spreads: Any, limits: Limits, columns: Any, counts: Any
) -> Any:
    """Queue the kernel, or whatever else `launch` does with it. n2: the largest in the table."""
    threads = min(MAX_THREADS, whole_warps(n2))
    return launch(survey_columns, table.shape[0], threads, table, weights, biases, spreads, *limits, columns, counts)
