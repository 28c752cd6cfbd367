"""Run a step of the SGEMM ladder and hold it to its bound: what its tests and its mutants share."""

from typing import NamedTuple

import numpy as np
from examine import record

from normlab import oracle
from normlab.engine import launch, use_gpu
from normlab.kernels import Product
from normlab.sim import sanitize


class Operands(NamedTuple):
    """alpha A B + beta C, as the host function takes it."""

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray | None
    alpha: float
    beta: float


def operands(m, n, k, alpha=1.0, beta=0.0, seed=0) -> Operands:
    rng = np.random.default_rng(seed)
    a, b, c = (rng.normal(size=shape).astype(np.float32) for shape in ((m, k), (k, n), (m, n)))
    return Operands(a, b, c if beta else None, alpha, beta)


def run(step, given: Operands, start=launch) -> np.ndarray:
    """What a step makes of them, by `start`, in memory that begins as NaN."""
    output = np.full((given.a.shape[0], given.b.shape[1]), np.nan, np.float32)
    alpha, beta = np.float32(given.alpha), np.float32(given.beta)
    step.run(start, None, Product(alpha, given.a, given.b, beta, given.c, output))
    return output


def chain(given: Operands) -> np.ndarray:
    """The bits that every step has in the simulator, which fuses nothing: k after k, rounded after every operation."""
    alpha, beta = np.float32(given.alpha), np.float32(given.beta)
    total = np.zeros((given.a.shape[0], given.b.shape[1]), np.float32)
    for k in range(given.a.shape[1]):
        total += np.multiply.outer(given.a[:, k], given.b[k])
    value = alpha * total
    return value if given.c is None else value + beta * given.c


def examine(step, given: Operands) -> None:
    """Hold a step to the oracle and, where nothing is fused, its bits to the chain's."""
    got = run(step, given)
    what = f"sgemm {step.name}"
    record(what, oracle.assert_within(got, oracle.product(*given), oracle.product_bound(*given), what))
    if not use_gpu():
        np.testing.assert_array_equal(got, chain(given), what)


def watched(kernel, grid, block, *arguments, shared_bytes=0):
    """Launch a product's kernel under `sanitize`, which must find nothing. The result, its last argument, is empty."""
    report = sanitize(kernel, [arguments[-1]])[grid, block, 0, shared_bytes](*arguments)
    assert not report.findings, str(report)
