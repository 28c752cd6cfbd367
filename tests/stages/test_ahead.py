"""Pipeline stages of vectors: what comes out of them is what lay in memory, however wide a vector is."""

import numpy as np
import pytest
from draws import DTYPES

from normlab.engine import commit_copies, cuda, float32, float64, launch, store, wait_copies
from normlab.sim import sanitize
from normlab.stages.ahead import fetcher

SLOTS, THREADS, ROWS = 3, 32, 7


def doubled(dtype, itemsize, width, late=0):
    """A kernel: target = 2 source, (ROWS, THREADS · width), rows fetched ahead; late: copies not waited for."""
    kind, fetch, take = fetcher(dtype, itemsize, width)
    size, step, pending = SLOTS * THREADS * width, THREADS * width, SLOTS - 1 + late

    @cuda.jit
    def kernel(source, target):
        stages = cuda.shared.array(size, kind, alignment=16)
        values = cuda.local.array(width, dtype)
        place = cuda.threadIdx.x * width
        for row in range(SLOTS - 1):
            fetch(stages, row * step + place, source, (row, place))
            commit_copies()
        for row in range(ROWS):
            if row + SLOTS - 1 < ROWS:
                fetch(stages, (row + SLOTS - 1) % SLOTS * step + place, source, (row + SLOTS - 1, place))
            commit_copies()
            wait_copies(pending)
            take(values, stages, row % SLOTS * step + place, source)
            for k in range(width):
                store(target, (row, place + k), values[k] + values[k])

    return kernel


def drawn(dtype, width):
    source = np.random.default_rng(width).normal(size=(ROWS, THREADS * width)).astype(DTYPES[dtype])
    return source, np.full(source.shape, np.nan, np.float64 if dtype == "float64" else np.float32)


def kernel_for(dtype, width, late=0):
    itemsize = np.dtype(DTYPES[dtype]).itemsize
    return doubled(float64 if dtype == "float64" else float32, itemsize, width, late)


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_all_vectors_come_through(dtype, width):
    source, target = drawn(dtype, width)
    launch(kernel_for(dtype, width), 1, THREADS, source, target)
    np.testing.assert_array_equal(target, 2 * source.astype(target.dtype))


@pytest.mark.parametrize(("dtype", "width"), [("bfloat16", 8), ("bfloat16", 1), ("float32", 4)])
def test_nothing_is_found(dtype, width):
    source, target = drawn(dtype, width)
    report = sanitize(kernel_for(dtype, width), [target])[1, THREADS](source, target)
    assert not report.findings, str(report)


def test_a_wait_for_too_few_is_found():
    source, target = drawn("float32", 4)
    assert not sanitize(kernel_for("float32", 4, late=1), [target])[1, THREADS](source, target).ok
