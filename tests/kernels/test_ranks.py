"""The kernels that merge ranks' messages: moments of whole sets, within their bounds, for any number of ranks."""

import numpy as np
import pytest

from normlab import oracle
from normlab.engine import compile_ptx, float32, float64, launch, using
from normlab.kernels import ranks
from normlab.kernels.split import ROW_THREADS, THREADS, VECTORS
from normlab.oracle.arithmetic import Arithmetic

MANY = [1, 2, 3, 5, 6, 7, 8, 13]
EPS = 1e-3


def merges(count: int, accumulator: str = "float32") -> Arithmetic:
    """How the kernels merge so many ranks, in the oracle's words."""
    return Arithmetic(
        accumulator=accumulator,
        row_terms=1,
        row_merges=(count - 1).bit_length(),
        column_terms=1,
        column_merges=0,
        statistics="merged",
    )


def parts(count: int, sets: int, dtype, offset: float = 0.0, seed: int = 0):
    """Counts (ranks,) with a 0 among them, means and m2s (ranks, sets), of random values."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 20, count)
    counts[rng.integers(count)] *= count == 1
    x = [rng.normal(size=(size, sets)) + offset + rng.normal() for size in counts]
    means, m2s = (
        np.array([of(one) if len(one) else np.zeros(sets) for one in x], dtype)
        for of in (lambda one: one.mean(0), lambda one: one.var(0) * len(one))
    )
    return counts, means, m2s


def launched(kernel, sets: int, *arguments) -> None:
    with using("simulator"):
        launch(kernel, -(-sets // ranks.THREADS), ranks.THREADS, *arguments)


@pytest.mark.parametrize("count", MANY)
@pytest.mark.parametrize(("dtype", "offset"), [(np.float32, 0.0), (np.float32, 1e4), (np.float64, 1e6)])
def test_merged_statistics_are_within_the_bounds(count, dtype, offset):
    sets = 130
    counts, means, m2s = parts(count, sets, dtype, offset)
    messages = np.concatenate((counts[:, None], means, m2s), 1).astype(dtype)
    size, mean, variance, invvar = (np.full(shape, np.nan, dtype) for shape in (1, sets, sets, sets))
    launched(ranks.ranks_statistics, sets, messages, dtype(EPS), size, mean, variance, invvar)
    truth = oracle.merged_moments(counts, means, m2s)
    bound = oracle.merged_moments_bound(counts, means, m2s, 0.0, 0.0, merges(count, np.dtype(dtype).name))
    total, u = counts.sum(), oracle.unit_roundoff(np.dtype(dtype).name)
    assert size[0] == total
    oracle.assert_within(mean, truth.mean, bound.mean, "mean")
    unbiased = truth.m2 / max(total - 1, 1)
    oracle.assert_within(variance, unbiased, bound.m2 / max(total - 1, 1) + 3 * u * unbiased, "variance")
    spread = truth.m2 / max(total, 1) + EPS
    of_invvar = (bound.m2 / max(total, 1) / spread + 8 * u) / np.sqrt(spread)
    oracle.assert_within(invvar, 1 / np.sqrt(spread), of_invvar, "invvar")


@pytest.mark.parametrize("count", MANY)
def test_merged_sums_of_squares_and_means_are_within_the_bounds(count):
    sets, u = 130, oracle.unit_roundoff("float32")
    rng = np.random.default_rng(count)
    counts = rng.integers(0, 9, count) + (np.arange(count) == 0)
    sums = rng.normal(size=(count, 2 * sets)).astype(np.float32)
    levels = (count - 1).bit_length()

    squares = np.square(sums[:, :sets])
    messages = np.concatenate((counts[:, None], squares), 1).astype(np.float32)
    size, invvar = np.full(1, np.nan, np.float32), np.full(sets, np.nan, np.float32)
    launched(ranks.ranks_statistics, sets, messages, np.float32(EPS), size, None, None, invvar)
    spread = squares.astype(float).sum(0) / counts.sum() + EPS
    oracle.assert_within(invvar, 1 / np.sqrt(spread), (levels + 4) * u / np.sqrt(spread), "invvar")

    gamma = rng.normal(size=sets).astype(np.float32)
    for rms, weight in ((False, None), (False, gamma), (True, None)):
        given = sums[:, sets:] if rms else sums
        means = np.full((2, sets), np.nan, np.float32)
        launched(ranks.ranks_means, sets, given.copy(), size, weight, means)
        wide = given.astype(float) * (1 if weight is None else np.tile(weight, 2))
        want, bound = (
            one.sum(0).reshape(-1, sets) / counts.sum()
            for one in (wide, abs(wide) * (levels + 2 + (weight is not None)) * u)
        )
        oracle.assert_within(means[1], want[-1], bound[-1], "mean of g x̂")
        oracle.assert_within(means[0], 0 * want[0] if rms else want[0], bound[0], "mean of g")


@pytest.mark.parametrize("count", MANY)
def test_a_graph_merges_to_the_same_bits_as_the_kernels_of_the_simulator(count):
    torch = pytest.importorskip("torch")
    from normlab.distributed import merging

    counts, means, m2s = parts(count, 40, np.float32, 100.0, seed=1)
    messages = np.concatenate((counts[:, None], means, m2s), 1).astype(np.float32)
    want = merging.merged(torch.from_numpy(messages.copy()), False)
    size, mean, variance, invvar = (np.full(shape, np.nan, np.float32) for shape in (1, 40, 40, 40))
    launched(ranks.ranks_statistics, 40, messages, np.float32(EPS), size, mean, variance, invvar)
    for got, one in zip((size, mean, messages[0, 41:]), want, strict=True):
        assert got.tobytes() == one.numpy().tobytes()


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("last", [1, 100])
def test_a_message_holds_the_count_and_the_moments_of_whole_rows(rms, last):
    width, n1 = 1, 3
    span = THREADS * VECTORS * width
    n2 = 2 * span + last
    x = (np.random.default_rng(last).normal(size=(n1, n2)) + 5).astype(np.float32)
    pieces = np.split(x, (span, 2 * span), axis=1)
    squares = [np.square(one if rms else one - one.mean(1, keepdims=True)).sum(1) for one in pieces]
    sums = np.concatenate((np.array([one.sum(1) for one in pieces]).T, np.array(squares).T)).astype(np.float32)
    message = np.full(1 + (1 if rms else 2) * n1, np.nan, np.float32)
    with using("simulator"):
        kernel = ranks.build_message(float32, width, rms)
        launch(kernel, n1, ROW_THREADS, x, sums, np.float32(1 / n2), message)
    wide = x.astype(float)
    want = np.square(wide).sum(1) if rms else np.concatenate((wide.mean(1), wide.var(1) * n2))
    assert message[0] == n2
    np.testing.assert_allclose(message[1:], want, rtol=2e-6)


def test_a_message_of_float64_keeps_its_digits():
    x = np.array([[1.0, 1.0 + 2**-40]])
    sums, message = np.array([[2.0 + 2**-40], [2.0**-81]]), np.full(3, np.nan)
    with using("simulator"):
        launch(ranks.build_message(float64, 1, False), 1, ROW_THREADS, x, sums, 0.5, message)
    assert message.tolist() == [2, 1 + 2**-41, 2.0**-81]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rms", [False, True])
def test_the_kernels_compile_for_a_gpu_and_float32_stays_float32(dtype, rms):
    pytest.importorskip("numba_cuda", reason="PTX is made by numba-cuda, which has no wheels for this platform")
    one, two = (dtype, 1), (dtype, 2)
    kernels = {
        ranks.ranks_statistics: (two, dtype, one, None if rms else one, None if rms else one, one),
        ranks.ranks_means: (two, one, None if rms else one, two),
        ranks.build_message(float32 if dtype is np.float32 else float64, 8, rms): (two, two, dtype, one),
    }
    for kernel, types in kernels.items():
        ptx = compile_ptx(kernel, types)
        assert (".f64" in ptx) == (dtype is np.float64)
        assert ".local" not in ptx
