"""What a launch costs: the busiest thread's work, and requests without those that a compiler leaves out."""

import numpy as np
import pytest

from normlab.course.costs import costs
from normlab.course.exercise import (
    BUSIEST_LOADS,
    BUSIEST_SHARED,
    BUSIEST_STORES,
    EXCHANGES,
    LOADS,
    SHARED_ACCESSES,
    STORES,
)
from normlab.course.process import _poisoned
from normlab.engine import cuda, float32, load_vector, store_vector


@cuda.jit
def one_does_more(x, y):
    i = cuda.grid(1)
    y[i] = x[i] + x[i]
    if i == 70:
        y[i] = y[0] + y[1]


@cuda.jit
def vectors(x, y):
    i = cuda.grid(1)
    if 4 * i + 4 <= y.shape[0]:
        store_vector(y, 4 * i, load_vector(x, 4 * i, 4))


@cuda.jit
def through_shared_memory(x, y):
    buffer = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    for k in range(64):
        buffer[i] = k
    y[cuda.grid(1)] = buffer[i]


@cuda.jit
def views(x, y):
    row = x[cuda.grid(1)]
    for k in range(row.shape[0]):
        row[k] = k


def counted(kernel, grid, block, *arguments):
    """Count by both engines, of which the second is given what the first has changed; they must agree."""
    found, again = (costs(kernel, engine)[grid, block](*arguments) for engine in ("scheduler", "vectorised"))
    assert found == again
    return found


@pytest.mark.parametrize(
    ("kernel", "metric", "count", "where"),
    [
        (one_does_more, BUSIEST_LOADS, 3, ([1, 0, 0], 0, 6)),
        (one_does_more, BUSIEST_STORES, 1, None),
        (vectors, BUSIEST_LOADS, 4, ([0, 0, 0], 0, 0)),
        (vectors, BUSIEST_STORES, 4, ([0, 0, 0], 0, 0)),
        (through_shared_memory, BUSIEST_SHARED, 65, None),
    ],
)
def test_the_busiest_thread_is_named_and_its_work_counted(kernel, metric, count, where):
    x, y = np.zeros((2, 128), np.float32)
    found = counted(kernel, 2, 64, x, y)
    assert found["metrics"][metric] == found["busiest"][metric]["count"] == count
    who = found["busiest"][metric]
    assert where is None or (who["block"], who["warp"], who["lane"]) == where


def test_the_average_is_that_of_the_busiest_threads_block():
    x, y = np.zeros((2, 128), np.float32)
    assert counted(one_does_more, 2, 64, x, y)["busiest"][BUSIEST_LOADS]["average"] == (64 + 2) / 64


def test_an_element_of_a_view_is_that_of_the_array():
    found = counted(views, 1, 32, np.zeros((32, 5), np.float32), np.zeros(1))
    assert found["metrics"][BUSIEST_STORES] == 5


@cuda.jit
def twice(x, y):
    i = cuda.grid(1)
    y[i] = x[i] + x[i] * x[i]


@cuda.jit
def after_a_store(x, y):
    i = cuda.grid(1)
    y[i] = x[i]
    y[i] += x[i]


@cuda.jit
def after_a_barrier(x, y):
    i = cuda.grid(1)
    first = x[i]
    cuda.syncthreads()
    y[i] = first + x[i]


@cuda.jit
def after_a_warp_barrier(x, y):
    i = cuda.grid(1)
    first = x[i]
    cuda.syncwarp()
    y[i] = first + x[i]


@cuda.jit
def after_a_fence(x, y):
    i = cuda.grid(1)
    first = x[i]
    cuda.threadfence()
    y[i] = first + x[i]


@cuda.jit
def after_a_shuffle(x, y):
    i = cuda.grid(1)
    y[i] = cuda.shfl_xor_sync(0xFFFFFFFF, x[i], 1) + x[i]


@pytest.mark.parametrize(
    ("kernel", "loads"),
    [
        (twice, 1),
        (after_a_store, 3),  # x, then y and x anew: the two arrays may be one
        (after_a_barrier, 2),
        (after_a_warp_barrier, 2),
        (after_a_fence, 2),
        (after_a_shuffle, 1),  # it exchanges registers, and orders no memory
    ],
)
def test_a_load_counts_once_until_a_store_or_a_barrier(kernel, loads):
    x, y = np.zeros((2, 32), np.float32)
    found = counted(kernel, 1, 32, x, y)["metrics"]
    assert found[LOADS] == loads
    assert found[STORES] >= 1


@cuda.jit
def two_walks(x, y):
    i = cuda.threadIdx.x
    total = float32(0)
    for column in range(x.shape[1]):
        total += x[i, column] * x[i, column]
    for column in range(x.shape[1]):
        total += x[i, column]
    y[i] = total


@pytest.mark.parametrize(("columns", "loads"), [(1, 1), (8, 8), (9, 18), (40, 80)])
def test_a_thread_holds_eight_elements(columns, loads):
    found = counted(two_walks, 1, 32, np.zeros((32, columns), np.float32), np.zeros(32, np.float32))
    assert found["metrics"][LOADS] == loads


@cuda.jit
def exchange(x, y):
    buffer = cuda.shared.array(32, float32)
    i = cuda.threadIdx.x
    buffer[i] = cuda.shfl_xor_sync(0xFFFFFFFF, x[i], 1)
    if i < 4:
        cuda.atomic.add(buffer, i, 1)
    if cuda.ballot_sync(0xFFFFFFFF, i < 4):
        y[i] = buffer[i]


def test_exchanges_count_warps_and_shared_accesses_count_threads():
    x, y = np.zeros((2, 32), np.float32)
    found = costs(exchange)[1, 32](x, y)  # by the scheduler: an atomic's sum is read before all threads have met
    assert found["metrics"][EXCHANGES] == 5  # a shuffle, a store, an atomic, a vote, a load
    assert found["metrics"][SHARED_ACCESSES] == 32 + 4 + 32
    for metric in (EXCHANGES, SHARED_ACCESSES):
        assert sum(line["metrics"][metric] for line in found["lines"]) == found["metrics"][metric]


def test_an_unwritten_integer_is_neither_a_count_nor_an_index():
    assert _poisoned(np.zeros(2, np.int32)).tolist() == [-(2**31)] * 2
    assert np.isnan(_poisoned(np.zeros(2, np.float32))).all()
