"""Find the columns at risk of many norms in one launch: one block per norm.

The norms' parameters lie anywhere in the GPU's memory, and they are more than a launch has arguments for. So the kernel
gets the stretch of memory that holds all of them as one array, and a table of offsets.
"""

from typing import Any, NamedTuple

import numpy as np

from normlab.engine import DeviceArray, cuda
from normlab.kernels.exact.choose import MAX_THREADS, Norm, list_columns
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
    asked = Norm(n2, weights, table[norm, 1], biases, table[norm, 2], spreads[table[norm, 3]])
    # a norm has as many slots as columns, so none of its columns is ever left out
    found = list_columns(asked, Limits(smallest, normal, ratio), columns, start, start + n2)
    if cuda.threadIdx.x == 0:
        counts[norm] = found  # written to pinned memory: the host reads it without a copy


class Asked(NamedTuple):
    """A norm of a survey: how many columns it has, and the addresses of its parameters and of its spread.

    The kernel reads no absent weight or bias. Its address must still lie among the others, because `tabulate` takes the
    lowest and the highest of all.
    """

    n2: int
    weight: int
    bias: int
    spread: int


def tabulate(norms: list[Asked], dtype: np.dtype, wide: np.dtype, device: int) -> tuple[np.ndarray, Any, Any]:
    """Return the kernel's table, and the stretches of memory that hold all parameters and all spreads as arrays.

    dtype: the parameters'. wide: the spreads'. device: the GPU's number.
    """
    sizes, weight_addresses, bias_addresses, spread_addresses = np.array(norms, np.int64).T
    # One array from the lowest parameter to the highest: the kernel takes two pointers instead of two per norm.
    lowest, spread = min(weight_addresses.min(), bias_addresses.min()), spread_addresses.min()
    weights, biases = ((addresses - lowest) // dtype.itemsize for addresses in (weight_addresses, bias_addresses))
    spreads = (spread_addresses - spread) // wide.itemsize
    length = max((weights + sizes).max(), (biases + sizes).max())
    # the last column: where each norm's slots begin, as many as it has columns
    table = np.stack([sizes, weights, biases, spreads, np.cumsum(sizes) - sizes], axis=1)
    parameters = DeviceArray(int(lowest), (int(length),), dtype, device, None)
    return table, parameters, DeviceArray(int(spread), (int(spreads.max()) + 1,), wide, device, None)


class Norms(NamedTuple):
    """What a survey reads, as `survey_columns` takes it. n2: the most columns of a norm in the table."""

    n2: int
    table: Any
    weights: Any
    biases: Any
    spreads: Any


def launch_survey(launch: Any, norms: Norms, limits: Limits, columns: Any, counts: Any) -> Any:
    """Call `launch` with the kernel, its grid and its arguments; return the result of that call."""
    threads = min(MAX_THREADS, whole_warps(norms.n2))  # as the widest norm needs; narrower ones have idle threads
    _, *arrays = norms
    return launch(survey_columns, norms.table.shape[0], threads, *arrays, *limits, columns, counts)
