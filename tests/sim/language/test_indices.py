"""Indices compute as int64, in both engines: they wrap at 64 bits, and with a float32 they give a float64."""

import numpy as np
import pytest
from numba import cuda
from sim.vectorised.engines import VECTORISED

from normlab.sim import simulate

THREADS, LENGTH = 64, 77


@cuda.jit
def wrapped(x, out):
    i = cuda.grid(1)
    n = x.shape[0]
    out[i, 0] = 1 if (i << 62) > 0 else 0
    out[i, 1] = (i << 62) // 3
    out[i, 2] = (i << 31 << 31) >> 60
    out[i, 3] = ((n + i) * 2654435761 * 2246822519) >> 33
    first = i * 1103515245 + 12345
    second = first * 1103515245 + 12345
    out[i, 4] = second * 1103515245 % 1000
    out[i, 5] = -(i << 63) >> 1
    out[i, 6] = ~(i << 62) > 0
    out[i, 7] = out[(i * 2654435761 * 2246822519 >> 40) % n % 64, 8]
    out[i, 9] = (i ^ 0x9E3779B97F4A7C15) > 0
    out[i, 10] = i * i * i * i * i * i * (n << 30) > 0


@cuda.jit
def widened(x, out):
    i = cuda.grid(1)
    n, v = x.shape[0], x[i]
    out[i, 0] = v * -i
    out[i, 1] = v + ~i
    out[i, 2] = v * abs(i - n)
    out[i, 3] = v * (i << 2)
    quotient, rest = divmod(i, 5)
    out[i, 4] = v * quotient + rest
    out[i, 5] = v * (i or n)
    out[i, 6] = v * (i, n)[1]
    total = v * 0
    for a in (i, n, 3):
        total += v * a
    out[i, 7] = total
    opposite = -i
    out[i, 8] = v * opposite
    for place, y in enumerate(x):
        out[i, 9] = y * place
    for place, y in zip(range(3, 9), x):  # noqa: B905
        out[i, 10] = y * place
    shape = x.shape
    out[i, 11] = v * shape[0]
    annotated: int = n
    out[i, 12] = v * annotated
    out[i, 13] = v * max(np.int64(2), i)
    out[i, 14] = v * (n if i > 3 else i)
    out[i, 15] = v * -(i // 3)


@cuda.jit
def summed(x, out):
    i = cuda.grid(1)
    out[i, 0] = x[i] * sum((i, x.size))
    out[i, 1] = x[i] * (last := x.size - 1) + last


@cuda.jit
def compared(x, out):
    i = cuda.grid(1)
    v, far = x[i], i + 16777217
    out[i, 0] = v == 16777217
    out[i, 1] = v < 16777217
    out[i, 2] = -v > -16777217
    out[i, 3] = 0 < v <= 16777215 + 2
    out[i, 4] = v < far
    out[i, 5] = i + 16777217 != v
    out[i, 6] = 1 if v >= (16777217 if i < 99 else 3) else 0
    out[i, 7] = far > i and far < 16777217 + out.size
    out[i, 8] = np.uint64(2**63 + i + 1) == 0x8000000000000000
    out[i, 9] = -i - 1 < 0xFFFFFFFFFFFFFFFF


def numbers():
    return np.random.default_rng(0).normal(size=LENGTH).astype(np.float32), np.arange(THREADS)


def run(kernel, columns, dtype, engine):
    """Return what a kernel stores; its column 8 begins with the numbers of the rows if they are integers."""
    out = np.zeros((THREADS, columns), dtype)
    if dtype is np.int64:
        out[:, 8] = np.arange(THREADS)
    said = simulate(kernel, engine=engine, explain=True)[2, 32](numbers()[0], out)
    assert engine != "vectorised" or said == VECTORISED
    return out


@pytest.mark.parametrize("engine", ["scheduler", "vectorised"])
def test_indices_wrap_at_64_bits(engine):
    _, i = numbers()
    large = i.copy()
    for factor in (2654435761, 2246822519):
        large *= factor
    second = (i * 1103515245 + 12345) * 1103515245 + 12345
    n = np.int64(LENGTH)
    expected = {
        0: (i << 62) > 0,
        1: (i << 62) // 3,
        2: (i << 62) >> 60,
        3: ((n + i) * 2654435761 * 2246822519) >> 33,
        4: second * 1103515245 % 1000,
        5: -(i << 63) >> 1,
        6: ~(i << 62) > 0,
        7: (large >> 40) % n % 64,
        9: (i ^ np.uint64(0x9E3779B97F4A7C15).astype(np.int64)) > 0,
        10: i**6 * (n << 30) > 0,
    }
    found = run(wrapped, 11, np.int64, engine)
    for column, numbers_of_lanes in expected.items():
        assert found[:, column].tolist() == numbers_of_lanes.astype(np.int64).tolist(), column


@pytest.mark.parametrize("engine", ["scheduler", "vectorised"])
def test_indices_make_a_float32_a_float64(engine):
    x, i = numbers()
    v, n = x[:THREADS].astype(np.float64), LENGTH
    total = v * 0 + v * i + v * n + v * 3
    factors = {0: -i, 2: abs(i - n), 3: i << 2, 5: np.where(i, i, n), 6: n, 8: -i, 11: n, 12: n, 13: np.maximum(2, i)}
    factors |= {14: np.where(i > 3, n, i), 15: -(i // 3)}
    expected = {column: v * factor for column, factor in factors.items()}
    last = np.ones(THREADS)
    expected |= {1: v + ~i, 4: v * (i // 5) + i % 5, 7: total, 9: last * x[-1] * (n - 1), 10: last * x[5] * 8}
    found = run(widened, 16, np.float64, engine)
    for column, numbers_of_lanes in expected.items():
        assert found[:, column].tolist() == numbers_of_lanes.tolist(), column


def test_sums_and_named_indices_make_a_float32_a_float64():
    x, i = numbers()
    v = x[:THREADS].astype(np.float64)
    found = run(summed, 2, np.float64, "scheduler")
    assert found.tolist() == np.stack([v * (i + LENGTH), v * (LENGTH - 1) + (LENGTH - 1)], 1).tolist()


@pytest.mark.parametrize("engine", ["scheduler", "vectorised"])
def test_a_float32_is_compared_with_a_large_integer_in_float64(engine):
    out = np.zeros((THREADS, 10), np.int64)
    said = simulate(compared, engine=engine, explain=True)[2, 32](np.full(THREADS, 2**24, np.float32), out)
    assert engine != "vectorised" or said == VECTORISED
    assert (out == [0, 1, 1, 1, 1, 1, 0, 1, 0, 1]).all()
