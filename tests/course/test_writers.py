"""Who wrote an element last: by a store, a vector, a slice, an atomic, in a view; in which block, warp and lane."""

import numpy as np
import pytest

from normlab.course.writers import last_writer
from normlab.engine import cuda, store_vector


@cuda.jit
def stores(y):
    i = cuda.grid(1)
    y[i] = i
    if i == 70:
        y[3] = i


@cuda.jit
def vectors(y):
    i = cuda.grid(1)
    if 4 * i + 4 <= y.shape[0]:
        store_vector(y, 4 * i, (y[0], y[0], y[0], y[0]))


@cuda.jit
def atomics(y):
    cuda.atomic.add(y, cuda.grid(1) % 7, 1)


@cuda.jit
def atomics_of_0(y):
    cuda.atomic.add(y, 0, 0)


@cuda.jit
def rows(y):
    i = cuda.grid(1)
    row = y[i]
    row[1] = i


@cuda.jit
def filled(y):
    i = cuda.grid(1)
    y[i] = i
    if i == 70:
        y[2:6] = i


@cuda.jit
def fields(y):
    i = cuda.grid(1)
    y[i].second = i


@cuda.jit
def guarded(y):
    i = cuda.grid(1)
    if i == 3:
        y[0] = 9
    cuda.syncthreads()
    cuda.atomic.cas(y, 0, 1, 2)


def place(writer):
    return writer["block"][0], writer["warp"], writer["lane"], writer["line"]


@pytest.mark.parametrize(
    ("kernel", "index", "wrote"),
    [
        (stores, 5, (0, 0, 5, 3)),
        (stores, 3, (1, 0, 6, 5)),
        (stores, 127, (1, 1, 31, 3)),
        (vectors, 10, (0, 0, 2, 4)),
        (filled, 5, (1, 0, 6, 5)),
    ],
)
def test_the_last_writer_of_an_element_is_named(kernel, index, wrote):
    y = np.zeros(128, np.float32)
    block, warp, lane, line = place(last_writer(kernel, y, (index,))[2, 64](y))
    assert (block, warp, lane, line - kernel.py_func.__code__.co_firstlineno) == (*wrote[:3], wrote[3])


def test_an_atomic_is_a_write():
    y = np.zeros(7, np.float32)
    assert last_writer(atomics, y, (0,))[1, 64](y)["lane"] == 63 // 7 * 7 - 32
    assert y.sum() == 64


def test_a_view_is_the_same_memory():
    y = np.zeros((32, 3), np.float32)
    assert last_writer(rows, y, (9, 1))[1, 32](y)["lane"] == 9
    assert last_writer(rows, y, (9, 2))[1, 32](y) is None


def test_an_atomic_that_changes_nothing_does_not_hide_the_thread_that_wrote():
    y = np.zeros(1, np.int32)
    assert last_writer(guarded, y, (0,))[1, 32](y)["lane"] == 3
    assert last_writer(atomics, y, (0,))[1, 1](y)["lane"] == 0
    before = {"lane": 7}
    assert last_writer(atomics_of_0, y, (0,), before)[1, 1](y) == before


def test_a_field_is_written_as_part_of_its_record():
    y = np.zeros(32, [("first", np.float32), ("second", np.float32)])
    assert last_writer(fields, y, (9,))[1, 32](y)["lane"] == 9
