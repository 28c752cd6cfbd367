"""How many elements the busiest thread touches: each counts once, whether read or stored, alone or in vectors."""

import numpy as np
import pytest
from normlab.course.busiest import busiest

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


@pytest.mark.parametrize(
    ("kernel", "elements", "where"),
    [(one_does_more, 4, ([1, 0, 0], 0, 6)), (vectors, 8, ([0, 0, 0], 0, 0)), (through_shared_memory, 1, None)],
)
def test_the_busiest_thread_is_named_and_its_elements_counted(kernel, elements, where):
    x, y = np.zeros((2, 128), np.float32)
    found = busiest(kernel)[2, 64](x, y)
    assert found["elements"] == elements
    assert where is None or (found["block"], found["warp"], found["lane"]) == where


def test_an_element_of_a_view_is_that_of_the_array():
    assert busiest(views)[1, 32](np.zeros((32, 5), np.float32), np.zeros(1))["elements"] == 5
