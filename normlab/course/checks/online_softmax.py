"""Exercise: softmax with the maximum and the sum of a row in one pass.

Source: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax", arXiv:1805.02867.
"""

import numpy as np

from normlab.course.data import EXCHANGED, nothing, values
from normlab.course.exercise import LOADS, Answer, Case, Cost, Drawn, Exercise, Launch, Size
from normlab.course.pictures import Line, Picture, Seen, results
from normlab.oracle import unit_roundoff

U = unit_roundoff("float32")
TREE = 12  # merges after those of a single thread: lanes and warps
SUBNORMAL = 2.0**-149  # the smallest float32 above 0


def softmax(x: np.ndarray) -> Answer:
    """Return the softmax of every row of x (n1, n2) in float64, with a bound for every order of merges.

    Let d = x - maximum, which is at most 0, and p the softmax. The maximum is exact. A float32 exponential is off by 2
    units in the last place (CUDA's guide), which is at most 4u of its value.

    Exponents: on its way into the sum a value's exponent d is split into differences of maxima, which are all at most
    0 and add up to d. Each is rounded, and exp2 rounds twice more: altogether at most 3u |d|, to first order; the same
    holds for the exponent of the result. So an exponential is off by the factor exp(3u |d|).

    Sum: a value takes part in at most n2 + TREE merges, of 6 roundings each (4 for the exponential, one for the
    product, one for the addition). A sum of positive terms has the weighted average of its terms' relative errors:
    s = Σ p (exp(3u |d|) (1 + γ) - 1), where γ is that of 6 (n2 + TREE) roundings.

    Result: one more exponential (4u), and a division, or a reciprocal and a product (2u). Numbers near 0 are off by
    half a subnormal number for each rounding: 8 subnormal numbers are more than those of the result, and what they do
    to the sum, which is at least about 1, lies far below 1u.
    """
    wide = x.astype(np.float64)
    maximum = wide.max(axis=1, keepdims=True)
    with np.errstate(invalid="ignore", under="ignore"):  # a row of -inf only: -inf - -inf is NaN
        d = wide - maximum
        exponentials = np.exp(d)
        p = exponentials / exponentials.sum(axis=1, keepdims=True)
        roundings = 6 * (x.shape[1] + TREE) * U
        # Where p is 0, d may be -inf: 0 times an infinite factor would be NaN.
        factor = np.where(p > 0, np.exp(3 * U * np.where(p > 0, abs(d), 0)), 1)
        in_sum = (p * (factor * (1 + roundings / (1 - roundings)) - 1)).sum(axis=1, keepdims=True) + U
        error = factor * (1 + 7 * U) / (1 - in_sum) - 1  # 6u as above, and 1u to spare
        return Answer(p, p * error + 8 * SUBNORMAL)


def _rows(drawn: Drawn) -> np.ndarray:
    rng, rows, columns = drawn.rng, drawn["rows"], drawn["columns"]
    x = values("counting" if drawn.kind == "rising" else drawn.kind, rng, rows, columns)
    if drawn.kind == "large":
        x = (10_000 + 30 * rng.normal(size=x.shape)).astype(np.float32)
    if drawn.kind == "far below 0":
        x = (-10_000 + 30 * rng.normal(size=x.shape)).astype(np.float32)
    if drawn.kind == "masked":
        x[rng.random(size=x.shape) < 0.5] = -np.inf
        x[rng.integers(rows)] = -np.inf
    return x


def _make(drawn: Drawn) -> Case:
    x = _rows(drawn)
    return Case(
        launches=[Launch("softmax", len(x), 64, ("x", "y"))],
        arrays={"x": x, "y": nothing(*x.shape)},
        want={"y": softmax(x)},
    )


def _curve(seen: Seen) -> list[Line]:
    """Return the softmax over the columns."""
    got, right = seen.arrays["y"][0], np.asarray(seen.case.want["y"].value)[0]
    return [Line("softmax", np.arange(len(got)), got, right)]


EXERCISE = Exercise(
    name="online_softmax",
    title="Softmax, and one pass for both statistics",
    make=_make,
    sizes={"rows": Size(1, 2), "columns": Size(1, 200, (2, 31, 33, 64, 65, 129), beyond=1400)},
    also=(({"rows": 2, "columns": 70}, "masked"),),  # a row with numbers beside one without
    kinds=("rising", "normal", "large", "far below 0", "masked", "equal"),
    example={"rows": 1, "columns": 128},
    hints=(
        "merge: if the larger maximum is -inf, both groups are empty, and (-inf, 0) is the answer. Otherwise the "
        "formula holds as it stands: exp(-inf - maximum) is 0.",
        "Each thread merges its own elements, x[row, column] with a total of 1; then five times with another lane, by "
        "cuda.shfl_xor_sync(0xFFFFFFFF, …, distance); then lane 0 of each warp leaves its pair in buffer.",
        "After one cuda.syncthreads() every thread merges the two pairs in buffer, and goes through its elements "
        "again: y[row, column] = math.exp(x[row, column] - maximum) / total.",
    ),
    costs=(*EXCHANGED, Cost(LOADS, "one pass for both statistics and one for y are enough")),
    tutorial=5,
    picture=Picture(
        results("Softmax of a row", "column", _curve),
        "the results lie on the right ones, and add up to 1",
        lambda: _make(Drawn({"rows": 1, "columns": 100}, "normal", 0)),
    ),
)
