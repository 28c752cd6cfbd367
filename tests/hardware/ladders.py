"""The ladders' own kernels, as their steps launch them."""

from collections.abc import Callable, Iterator

import ml_dtypes
import numpy as np

from normlab.kernels import LADDERS
from normlab.kernels.problem import BackwardProblem, ForwardProblem

from .launches import Launch, counts

EPS = np.float32(1e-5)
HOISTED = {
    "backward apex grad input": (
        "mean[row] and invvar[row] are loaded once for four columns, not four times, and invvar[row] once for a "
        "gradient, not twice: no store comes between.",
        3 * 32 * 6 + 3 * 4 * 32,  # a turn of a warp (3 warps with columns, 32 rows) loses 6 loads, a gradient one
    )
}


class Scratch:
    """Memory for partial sums."""

    empty = zeros = staticmethod(np.zeros)


def _recorded(run: Callable, note: str = "", unverified: bool = True) -> Iterator[Launch]:
    """One launch of each kernel that a step launches. The counts do not depend on the arrays' values."""
    calls = {}
    run(lambda kernel, grid, block, *arguments, **how: calls.setdefault(kernel, (grid, block, arguments, how)))
    for kernel, (grid, block, arguments, how) in calls.items():
        name = kernel.py_func.__name__.replace("_", " ")
        compiler, fewer = HOISTED.get(name, ("", 0))
        yield Launch(
            f"{name}{note}", kernel, grid, block, lambda rng, a=arguments: a,
            compiler=compiler, fewer=counts(ld=(fewer, fewer)) if fewer else {}, unverified=unverified, **how,
        )  # fmt: skip


def _forward(name: str, n1: int, n2: int, dtype: type, note: str = "", unverified: bool = True) -> Iterator[Launch]:
    rng = np.random.default_rng(0)
    x, weight, bias = (rng.normal(size=shape).astype(dtype) for shape in ((n1, n2), n2, n2))
    results = np.zeros_like(x), np.zeros(n1, np.float32), np.zeros(n1, np.float32)
    step = next(step for step in LADDERS["forward"] if step.name == name)
    problem = ForwardProblem(x, weight, bias, EPS, *results)
    yield from _recorded(lambda launch: step.run(launch, Scratch, problem), note, unverified)


def _backward(name: str, n1: int, n2: int, dtype: type, note: str = "", unverified: bool = True) -> Iterator[Launch]:
    rng = np.random.default_rng(0)
    x, dy, weight, bias = (rng.normal(size=shape).astype(dtype) for shape in ((n1, n2), (n1, n2), n2, n2))
    mean, invvar = np.zeros(n1, np.float32), np.ones(n1, np.float32)
    results = np.zeros_like(x), np.zeros_like(weight), np.zeros_like(bias)
    problem = BackwardProblem(dy, x, mean, invvar, weight, bias, EPS, False, False, *results)
    step = next(step for step in LADDERS["backward"] if step.name == name)
    yield from _recorded(lambda launch: step.run(launch, Scratch, problem), note, unverified)


LADDER_LAUNCHES = [
    *_forward("apex", 32, 384, np.float32, unverified=False),
    *_backward("apex", 32, 384, np.float32, unverified=False),
    *_forward("vectors", 8, 1024, np.float32, " float32"),
    *_forward("vectors", 8, 2048, ml_dtypes.bfloat16, " bfloat16"),
    *_forward("one_barrier", 10, 2048, np.float32, " float32"),  # a row per block, its parameters beside it
    *_forward("one_barrier", 8, 4096, ml_dtypes.bfloat16, " bfloat16"),
    *_forward("clusters", 2, 32776, ml_dtypes.bfloat16, " bfloat16"),  # sixteen blocks a row
    *_backward("fused", 8, 1024, np.float32, " float32"),
    *_backward("pipelined", 24, 4096, np.float32, " without prefetch"),
    *_backward("pipelined", 24, 768, ml_dtypes.bfloat16, " with prefetch"),
    *_backward("pipelined", 4, 8200, np.float32, " in clusters"),  # two blocks a row
]
