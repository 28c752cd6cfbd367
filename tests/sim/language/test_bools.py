"""Bools add up as integers, as Numba types them, wherever they come from."""

import functools

import numpy as np
import pytest
from numba import cuda

from normlab.sim import sanitize, simulate, trace

THREADS = 32


@cuda.jit(device=True)
def is_even(k):
    return k % 2 == 0


@cuda.jit(device=True)
def signs(x):
    return x > 0, x >= 0


@cuda.jit
def sums(x, m, yes, no, out, either):
    i = cuda.grid(1)
    before = (i + THREADS - 1) % THREADS
    out[i, 0] = m[i] + m[before]
    out[i, 1] = -m[i] - m[before] * m[i]
    out[i, 2] = is_even(i) + is_even(0)
    positive, not_negative = signs(x[i])
    out[i, 3] = positive + not_negative
    first, second = x[i] > 0, x[before] > 0
    out[i, 4] = first - second
    out[i, 5] = (m[i] & m[before]) + (m[i] | m[before]) + ~m[i]
    out[i, 6] = yes + yes - no + -yes + m[i]
    count = m[0]
    for k in range(1, 8):
        count += m[k]
    out[i, 7] = count
    either[i] = m[i] + m[before]


@cuda.jit(device=True)
def both(first, second):
    return first + second


@cuda.jit
def given_sums(x, out):
    i = cuda.grid(1)
    positive = x[i] > 0
    out[i, 0] = both(x[i] > 0, x[i] >= 0)
    out[i, 1] = both(positive, second=not x[i] < 0)


@cuda.jit
def made_sums(x, out):
    i = cuda.grid(1)
    chosen = (x[i] > 0) if x[i] > 0 else (x[i] >= 0)
    out[i, 0] = chosen + chosen
    count = x[i] > 0
    count += x[i] >= 0
    out[i, 1] = count
    out[i, 2] = ((x[i] > 0 and 0.5) + (x[i] >= 0)) * 2


WORLDS = {
    "simulate": simulate,
    "scheduler": functools.partial(simulate, engine="scheduler"),
    "vectorised": functools.partial(simulate, engine="vectorised"),
    "checked": functools.partial(simulate, check=True),
    "sanitize one by one": functools.partial(sanitize, engine="scheduler"),
    "trace": trace,
}


@pytest.mark.parametrize("world", WORLDS)
def test_bools_add_up_as_integers(world):
    draw = np.random.default_rng(1)
    x, m = draw.integers(-1, 2, THREADS).astype(np.float32), draw.integers(0, 2, THREADS).astype(np.bool_)
    out, either = np.zeros((THREADS, 8), np.int64), np.zeros(THREADS, np.bool_)
    result = WORLDS[world](sums)[1, THREADS](x, m, True, np.bool_(False), out, either)
    one, other, even = m.astype(int), np.roll(m, 1).astype(int), np.arange(THREADS) % 2 == 0
    positive, not_negative = (x > 0).astype(int), (x >= 0).astype(int)
    wanted = [
        *(one + other, -one - other * one, even + 1, positive + not_negative, positive - np.roll(positive, 1)),
        *(one + other + 1 - one, 1 + one, np.full(THREADS, m[:8].sum())),
    ]
    assert out.tolist() == np.transpose(wanted).tolist()
    assert either.tolist() == (m | np.roll(m, 1)).tolist()
    assert not getattr(result, "findings", ())


@pytest.mark.parametrize("world", WORLDS)
def test_comparisons_that_a_device_function_is_given_add_up_as_integers(world):
    x, out = np.random.default_rng(1).integers(-1, 2, THREADS).astype(np.float32), np.zeros((THREADS, 2), np.int64)
    result = WORLDS[world](given_sums)[1, THREADS](x, out)
    assert out.T.tolist() == [((x > 0).astype(int) + (x >= 0)).tolist()] * 2
    assert not getattr(result, "findings", ())


@pytest.mark.parametrize("world", WORLDS)
def test_chosen_and_counted_comparisons_add_up_as_numbers(world):
    x, out = np.random.default_rng(1).integers(-1, 2, THREADS).astype(np.float32), np.zeros((THREADS, 3), np.int64)
    WORLDS[world](made_sums)[1, THREADS](x, out)
    wanted = [(2 * (v >= 0), (v > 0) + (v >= 0), (v > 0) + 2 * (v >= 0)) for v in x.tolist()]
    assert out.tolist() == [list(row) for row in wanted]
