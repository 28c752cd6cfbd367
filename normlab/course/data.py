"""Draw the numbers that exercises are checked with, and compute the right answers that several exercises share."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from normlab import oracle
from normlab.course.exercise import (
    ANYWHERE,
    BARRIERS,
    BUSIEST_SHARED,
    EXCHANGES,
    SHUFFLES,
    Answer,
    Case,
    Cost,
    Drawn,
    Launch,
)
from normlab.course.pictures import Line, Seen
from normlab.oracle.forward_bounds import finished
from normlab.oracle.inexact import Inexact
from normlab.oracle.moments import mean_and_variance
from normlab.oracle.rows import as_rows
from normlab.oracle.values import normalise

EPS = 1e-5
ZEROS = 0.1  # of the normal numbers
U = oracle.unit_roundoff("float32")
EXACT = 64  # columns of a row whose mean is exact: a power of two, so that all divisions are
EPSILONS = (1e-5, 1e-3, 0.1)  # a kernel gets one of these: eps is an argument, not a constant
# What a tree over a block of 64 threads costs. The reference solutions' trees are of shuffles; one in shared memory
# needs as many exchanges, but its first thread takes part in every step.
EXCHANGED = (
    Cost(EXCHANGES, "5 steps among the lanes of a warp, and one among warps", times=2),
    Cost(BUSIEST_SHARED, "a thread takes part in 6 steps of a tree at most", times=5),
    Cost(BARRIERS, "6 steps of a tree need no more than 7", spare=SHUFFLES),
    *ANYWHERE,
)


def values(kind: str, rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Return float32 numbers of a kind: "counting", "normal", "offset", "far", "equal" or "zero".

    Counting numbers are 1, 2, 3, …. Normal ones have mean 0, those at an offset 1000, far ones 100,000; the standard
    deviation of all three is about 1. Every tenth of the normal ones is exactly 0, which is a number like others.
    """
    if kind == "counting":
        return np.arange(1, np.prod(shape, dtype=int) + 1, dtype=np.float32).reshape(shape)
    if kind == "equal":
        return np.full(shape, 0.1, np.float32)
    if kind == "zero":
        return np.zeros(shape, np.float32)
    drawn = rng.normal(size=shape)
    if kind == "normal":
        drawn[rng.random(shape) < ZEROS] = 0
    return (drawn + {"offset": 1000, "far": 100_000}.get(kind, 0)).astype(np.float32)


def nothing(*shape: int) -> np.ndarray:
    """Return an uninitialised float32 array for results."""
    return np.empty(shape, np.float32)


def sums(x: np.ndarray) -> Answer:
    """Return the sum of every row of x (n1, n2), with a bound that holds for every order of additions."""
    ones = np.ones((x.shape[1], 1), np.float32)
    return Answer(oracle.product(x, ones)[:, 0], oracle.product_bound(x, ones)[:, 0])


def sums_case(drawn: Drawn, grid: int, block: int) -> Case:
    """Return a case in which the kernel sum_rows(x, sums) adds up drawn["rows"] rows of `block` values."""
    x = values(drawn.kind, drawn.rng, drawn["rows"], block)
    return Case(
        launches=[Launch("sum_rows", grid, block, ("x", "sums"))],
        arrays={"x": x, "sums": nothing(len(x))},
        want={"sums": sums(x)},
    )


def arithmetic(n2: int, statistics: oracle.arithmetic.Statistics = "welford") -> oracle.Arithmetic:
    """Return the arithmetic of a solution without a tree, which rounds the most: one thread adds all n2 values."""
    return oracle.Arithmetic(row_terms=n2, row_merges=12, column_terms=n2, column_merges=0, statistics=statistics)


def moments_case(drawn: Drawn, kernel: str, grid: int, block: int, lanes: int | None = None) -> Case:
    """Return a case in which `kernel`(x, means, variances) computes mean and biased variance of every row of x.

    The results are (rows,), or (rows, lanes) if each of so many lanes stores a row's results.
    """
    x = values(drawn.kind, drawn.rng, drawn["rows"], drawn["columns"])
    shape = (len(x), lanes) if lanes else (len(x),)
    rows = as_rows(x, x.shape[1], None, None, EPS)
    mean, variance = mean_and_variance(rows.x, normalise(rows, centred=True), arithmetic(x.shape[1]))
    return Case(
        launches=[Launch(kernel, grid, block, ("x", "means", "variances"))],
        arrays={"x": x, "means": nothing(*shape), "variances": nothing(*shape)},
        want={"means": _answer(mean, shape), "variances": _answer(variance, shape)},
    )


def _answer(held: Inexact, shape: tuple[int, ...]) -> Answer:
    """Return the answer for an array of `shape`, (rows,) or (rows, lanes), from a value and its error for each row."""
    found = held.exact[:, 0].astype(np.float64), finished(held.error, held.exact, held.exact.shape[:1])
    return Answer(*(np.broadcast_to(one.reshape(-1, *[1] * (len(shape) - 1)), shape) for one in found))


def growing_case(kernel: str, most: int, lanes: int | None = None) -> Case:
    """Return a case for pictures: `kernel`(x, means, variances) gets one row of 1 value, then of 2, up to `most`.

    `lanes`: as for `moments_case`.
    """
    shape = (1, lanes) if lanes else (1,)
    row = np.random.default_rng(0).normal(3, 1, (1, most)).astype(np.float32)
    arrays: dict[str, np.ndarray] = {}
    want: dict[str, Answer] = {}
    for n in range(1, most + 1):
        arrays |= {f"x{n}": row[:, :n].copy(), f"means{n}": nothing(*shape), f"variances{n}": nothing(*shape)}
        want |= {f"means{n}": Answer(row[:, :n].mean(1), 0.0), f"variances{n}": Answer(row[:, :n].var(1), 0.0)}
    launches = [Launch(kernel, 1, 32, (f"x{n}", f"means{n}", f"variances{n}")) for n in range(1, most + 1)]
    return Case(launches, arrays, want)


def growing_lines(seen: Seen) -> list[Line]:
    """Return mean and variance over the number of values, from `growing_case`."""
    counts = np.arange(1, len(seen.launches) + 1)
    found = []
    for name in ("means", "variances"):
        got = np.array([seen.arrays[f"{name}{n}"].flat[0] for n in counts])
        want = np.array([np.ravel(seen.case.want[f"{name}{n}"].value)[0] for n in counts])
        found.append(Line(name.removesuffix("s"), counts, want, got))
    return found


class NormCase(NamedTuple):
    """The arrays and answers that all exercises about a whole norm share; eps is the float32 that a kernel gets."""

    arrays: dict[str, np.ndarray]
    want: dict[str, Answer]
    eps: np.float32


def mean_is_exact(kind: str, columns: int) -> bool:
    """Return whether `centred_values` have means that are exact in float32."""
    return kind == "offset" and columns == EXACT


def centred_values(kind: str, rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Return rows of `values` for a norm that subtracts the mean.

    Rows of EXACT columns at an offset have numbers from 100,000 to 100,003, each for four neighbours, as many as a
    thread of `row_moments` takes. Their means are exact in float32, with all means on the way. Then x - mean is exact,
    too, and what follows rounds relative to it: x · invvar - mean · invvar, which rounds relative to x, is off by more.
    """
    if mean_is_exact(kind, columns):
        return np.repeat(100_000 + rng.integers(4, size=(rows, EXACT // 4)), 4, axis=1).astype(np.float32)
    return values(kind, rng, rows, columns)


def centred_answer(output: ArrayLike, bias: np.ndarray) -> Answer:
    """Return the answer for the output of a row whose mean is exact: it rounds less than 16 times."""
    return Answer(output, 16 * U * (abs(np.asarray(output) - bias) + abs(bias)))


def norm_case(drawn: Drawn, rms: bool = False) -> NormCase:
    """Return LayerNorm's arrays and answers, or RMSNorm's (no means, no bias), for the drawn rows and columns."""
    rng, rows, columns = drawn.rng, drawn["rows"], drawn["columns"]
    x = (values if rms else centred_values)(drawn.kind, rng, rows, columns)
    if drawn.kind == "normal" and rows > 1:  # a row may hold nothing but zeros, as a padded one does
        x[rng.integers(rows)] = 0
    weight, bias = values("normal", rng, 2, columns)
    arrays = {"x": x, "weight": weight, "bias": bias, "output": nothing(rows, columns)}
    arrays |= {"means": nothing(rows), "invvars": nothing(rows)}
    eps = float(rng.choice(EPSILONS))
    if rms:
        truth = oracle.rms_norm(x, columns, weight, eps)
        bound = oracle.rms_norm_bound(x, columns, weight, eps, arithmetic(columns))
    else:
        truth = oracle.layer_norm(x, columns, weight, bias, eps)
        bound = oracle.layer_norm_bound(x, columns, weight, bias, eps, arithmetic(columns))
    results = zip(("output", "means", "invvars"), truth, bound, strict=True)
    want = {name: Answer(value, error) for name, value, error in results if value is not None and error is not None}
    if mean_is_exact(drawn.kind, columns) and not rms:
        want["output"] = centred_answer(truth.output, bias)
    return NormCase(arrays, want, np.float32(eps))


def backward_case(drawn: Drawn, name: str, how: oracle.Arithmetic) -> tuple[dict[str, np.ndarray], Answer]:
    """Return the inputs of LayerNorm's backward and its gradient `name`; the statistics are exact, then rounded."""
    rng, rows, columns = drawn.rng, drawn["rows"], drawn["columns"]
    x, grad_output = centred_values(drawn.kind, rng, rows, columns), values("normal", rng, rows, columns)
    weight = values("normal", rng, columns)
    forward = oracle.layer_norm(x, columns, eps=EPS)
    means, invvars = np.asarray(forward[1:], np.float32)
    arrays = {"grad_output": grad_output, "x": x, "means": means, "invvars": invvars, "weight": weight}
    return arrays, gradient(arrays, name, how)


def gradient(arrays: dict[str, np.ndarray], name: str, how: oracle.Arithmetic, rows: slice = slice(None)) -> Answer:
    """Return the gradient `name` of some rows of the inputs that `backward_case` returns.

    The bound has the errors that the given statistics have: none where the mean is exact.
    """
    x = arrays["x"][rows]
    given = arrays["grad_output"][rows], x, x.shape[1], arrays["weight"], None, EPS
    exact = np.asarray(oracle.layer_norm(x, x.shape[1], eps=EPS)[1:])
    off = abs([arrays["means"][rows], arrays["invvars"][rows]] - exact) + oracle.unit_roundoff("float64") * abs(exact)
    truth = oracle.layer_norm_backward(*given)
    bound = oracle.layer_norm_backward_bound(*given, how, mean_error=off[0], invvar_error=off[1])
    return Answer(getattr(truth, name), getattr(bound, name))


def scan_case(drawn: Drawn, block: int) -> Case:
    """Return a case in which the kernel scan(x, y) computes the running sums of the drawn rows, a block per row."""
    x = values(drawn.kind, drawn.rng, drawn["rows"], drawn["columns"])
    return Case(
        launches=[Launch("scan", len(x), block, ("x", "y"))],
        arrays={"x": x, "y": nothing(*x.shape)},
        want={"y": running_sums(x)},
    )


def running_sums(x: np.ndarray) -> Answer:
    """Return the running sums of every row of x (n1, n2), with a bound that holds for every order of additions.

    Sum number i has i additions: γ of i roundings, times the sum of the absolute values (Higham, (4.4)). The float64
    sums have rounding errors, too.
    """
    u, additions = oracle.unit_roundoff("float32"), np.arange(x.shape[1])
    error = additions * u / (1 - additions * u) + additions * oracle.unit_roundoff("float64")
    wide = x.astype(np.float64)
    return Answer(np.cumsum(wide, axis=1), error * np.cumsum(abs(wide), axis=1))
