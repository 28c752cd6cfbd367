"""What the tests draw: shapes, dtypes, and the values on which norms go wrong."""

import itertools
import os
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

DTYPES = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}
SAME = [(name, name) for name in DTYPES]
MIXED = [("float32", "float16"), ("float32", "bfloat16"), ("float16", "float32"), ("bfloat16", "float32")]
WIDTHS = [1, 2, 31, 32, 33, 127, 128, 129, 385, 769]
EPS = [1e-12, 1e-5, 0.5]


@dataclass(frozen=True)
class Case:
    """Everything a norm takes, forward and backward."""

    x: np.ndarray  # (n1, n2), dtype T
    weight: np.ndarray | None  # (n2,), dtype V
    bias: np.ndarray | None  # (n2,), dtype V
    grad_output: np.ndarray  # (n1, n2), dtype V
    eps: float
    rms: bool

    @property
    def n2(self) -> int:
        return self.x.shape[1]


def inputs(kind: str, rng: np.random.Generator, n1: int, n2: int) -> np.ndarray:
    """Rows in float64: 'normal', mean ≫ 'spread', an 'outlier' column, all values 'equal' in a row, or 'tiny'."""
    x = rng.normal(size=(n1, n2))
    if kind == "offset":
        x = x + 100 * rng.normal(size=(n1, 1))
    elif kind == "outlier":
        x[:, rng.integers(n2)] += 220
    elif kind == "equal":
        x = np.repeat(rng.normal(size=(n1, 1)), n2, axis=1)
    elif kind == "tiny":
        x = x * 1e-3
    return x


def gammas(kind: str, rng: np.random.Generator, n2: int, eps: float) -> np.ndarray:
    """Weights in float64: ordinary ones, or the values around which recomputing turns wrong."""
    if kind == "normal":
        return rng.normal(size=n2)
    return rng.choice([0.0, -0.0, 1e-6, -1e-6, eps / 2, -eps / 2, eps, -eps, 1.0, -1.0, 300.0], size=n2)


def strided(kind: str, array: np.ndarray) -> np.ndarray:
    """The same values in another layout of memory."""
    if kind == "every other column":
        return np.repeat(array, 2, axis=1)[:, ::2]
    if kind == "backwards":
        return array[::-1, ::-1].copy()[::-1, ::-1]
    if kind == "columns first":
        return np.asfortranarray(array)
    return array


@st.composite
def cases(draw, widths=tuple(WIDTHS), rows=(0, 1, 2, 5), dtypes=(*SAME, *MIXED)) -> Case:
    """A case, from a seed and a handful of choices, so that a failing one shrinks to something one can read."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1), label="seed"))
    n1, n2 = draw(st.sampled_from(rows), label="n1"), draw(st.sampled_from(widths), label="n2")
    t, v = (DTYPES[name] for name in draw(st.sampled_from(dtypes), label="input and parameter dtypes"))
    eps = draw(st.sampled_from(EPS), label="eps")
    rms = draw(st.booleans(), label="rms")
    x = inputs(draw(st.sampled_from(["normal", "offset", "outlier", "equal", "tiny"]), label="x"), rng, n1, n2)
    weight = gammas(draw(st.sampled_from(["normal", "treacherous"]), label="gamma"), rng, n2, eps)
    bias = rng.normal(size=n2) * draw(st.sampled_from([1.0, 1000.0]), label="beta scale")
    grad_output = rng.normal(size=(n1, n2)) * draw(st.sampled_from([1.0, 1e-3]), label="grad_output scale")
    has_weight, has_bias = draw(st.booleans(), label="weight?"), draw(st.booleans(), label="bias?") and not rms
    if not (has_weight or has_bias):
        v = t
    layout = draw(st.sampled_from(["contiguous", "every other column", "backwards", "columns first"]), label="layout")
    return Case(
        x=strided(layout, x.astype(t)),
        weight=weight.astype(v) if has_weight else None,
        bias=bias.astype(v) if has_bias else None,
        grad_output=strided(layout, grad_output.astype(v)),
        eps=eps,
        rms=rms,
    )


ALL = bool(os.environ.get("NORMLAB_ALL_PLANS"))  # the two functions below return all combinations


def sampled(*lists: list) -> list[tuple]:
    """Return combinations in which each element of each list is at least once; NORMLAB_ALL_PLANS=1: all combinations.

    For tests whose every combination costs seconds of the compiler.
    """
    if ALL:
        return list(itertools.product(*lists))
    return [tuple(one[turn % len(one)] for one in lists) for turn in range(max(map(len, lists)))]


def paired(*lists, possible=lambda *one: True) -> list[tuple]:
    """Return possible combinations in which any two elements of two lists meet, if they do in one that is possible.

    With NORMLAB_ALL_PLANS=1: all possible ones. For tests of many small cases, which fail by one parameter, or by two.
    """
    lists = [list(one) for one in lists]
    every = [
        numbers
        for numbers in itertools.product(*(range(len(one)) for one in lists))
        if possible(*(one[number] for one, number in zip(lists, numbers, strict=True)))
    ]
    meeting = {numbers: set(itertools.combinations(enumerate(numbers), 2)) for numbers in every}
    missing, chosen = set().union(*meeting.values()), every if ALL else []
    while missing and not ALL:
        chosen.append(max(every, key=lambda numbers: len(meeting[numbers] & missing)))
        missing -= meeting[chosen[-1]]
    return [tuple(one[number] for one, number in zip(lists, numbers, strict=True)) for numbers in chosen]
