"""The elements that a row has of a vector, stored in few pieces."""

import ml_dtypes
import numpy as np
import pytest

from normlab.engine import cuda, flat, float32, launch, load, using
from normlab.sim import trace
from normlab.stages.row_ends import part_storer

WIDTHS = {ml_dtypes.bfloat16: 8, np.float32: 4}


def kernel_of(width):
    store_part = part_storer(width)

    @cuda.jit
    def kernel(x, out, before, left):
        values = cuda.local.array(2 * width, float32)
        for k in range(2 * width):
            values[k] = load(x, k)
        store_part(values, width, flat(out), 0, before, left)

    return kernel


def aligned(dtype, width):
    """Memory for a vector, which begins at a multiple of 16 bytes."""
    memory = np.full(3 * width, 7, dtype)
    start = -memory.ctypes.data % 16 // memory.itemsize
    return memory[start : start + width]


@pytest.mark.parametrize("dtype", WIDTHS)
def test_the_elements_of_the_row_are_stored_and_no_others(dtype):
    """A row begins within the vector, ends there, or has ended before."""
    width = WIDTHS[dtype]
    x, kernel = np.arange(2 * width).astype(dtype), kernel_of(width)
    ends = [(before, width + 3) for before in range(1, width)] + [(-5, left) for left in range(-2, width)]
    for before, left in ends:
        out = aligned(dtype, width)
        with using("simulator"):
            launch(kernel, 1, 1, x, out, np.int32(before), np.int32(left))
        inside = np.arange(width) >= before if before > 0 else np.arange(width) < left
        np.testing.assert_array_equal(out, np.where(inside, x[width:], dtype(7)))


@pytest.mark.parametrize("dtype", WIDTHS)
def test_a_part_takes_as_few_stores_as_its_number_of_elements_has_ones(dtype):
    width = WIDTHS[dtype]
    x, kernel = np.arange(2 * width).astype(dtype), kernel_of(width)
    for left in range(1, width):
        metrics = trace(kernel)[1, 1](x, aligned(dtype, width), np.int32(0), np.int32(left)).metrics
        assert metrics["l1tex__t_requests_pipe_lsu_mem_global_op_st.sum"] == left.bit_count()
