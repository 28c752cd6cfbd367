"""Rows dealt to threads in vectors: the arithmetic of a thread map, the widest vector, and what a thread loads."""

import ml_dtypes
import numpy as np
import pytest
from counting import LOADED, STORED, counter

from normlab.engine import cuda, float32, launch
from normlab.kernels import LADDERS, ForwardProblem
from normlab.stages.vector import ThreadMap, map_threads, row_loader, whole_warps, widest

BFLOAT16 = ml_dtypes.bfloat16
VECTORS = next(step for step in LADDERS["forward"] if step.name == "vectors")


@pytest.mark.parametrize(
    ("n2", "width", "threads", "vectors", "whole"),
    [
        (1, 1, 32, 1, False),
        (32, 1, 32, 1, True),
        (33, 1, 32, 2, False),
        (1024, 8, 32, 4, True),
        (1032, 8, 64, 3, False),
    ],
)
def test_a_row_is_dealt_in_as_few_vectors_as_hold_it(n2, width, threads, vectors, whole):
    thread_map = map_threads(n2, width, threads)
    assert thread_map == ThreadMap(threads, vectors, width, whole)
    assert thread_map.elements == vectors * width
    assert thread_map.span == threads * width
    assert thread_map.columns == vectors * threads * width
    assert thread_map.columns - thread_map.span < n2 <= thread_map.columns
    assert thread_map.warps == threads // 32


@pytest.mark.parametrize(("threads", "warps"), [(1, 1), (32, 1), (33, 2), (1024, 32)])
def test_threads_are_rounded_up_to_whole_warps(threads, warps):
    assert whole_warps(threads) == 32 * warps


def at(dtype, elements):
    """An array that begins so many elements behind a multiple of 64 bytes."""
    memory = np.zeros(256, np.uint8)
    start = -memory.ctypes.data % 64 + elements * np.dtype(dtype).itemsize
    return memory[start : start + 4 * np.dtype(dtype).itemsize].view(dtype)


@pytest.mark.parametrize(
    ("dtype", "offset", "n2", "width"),
    [
        (BFLOAT16, 0, 4096, 8),
        (BFLOAT16, 4, 4096, 4),
        (BFLOAT16, 6, 4096, 2),
        (BFLOAT16, 7, 4096, 1),
        (BFLOAT16, 0, 4100, 4),
        (BFLOAT16, 0, 4102, 2),
        (BFLOAT16, 0, 4101, 1),
        (np.float32, 0, 4096, 4),
        (np.float32, 2, 4096, 2),
        (np.float32, 1, 4096, 1),
        (np.float64, 0, 4096, 2),
        (np.float64, 1, 4096, 1),
        (np.float32, 0, 1, 1),
    ],
)
def test_the_widest_vector_divides_row_and_address(dtype, offset, n2, width):
    assert widest(n2, at(dtype, offset)) == width
    assert widest(n2, at(dtype, 0), None, at(dtype, offset)) == width, "the least aligned of several arrays counts"


def test_the_widest_dtype_limits_the_vector_of_all():
    assert widest(4096, at(BFLOAT16, 0), at(np.float32, 0)) == 4
    assert widest(4096, at(BFLOAT16, 4), at(np.float32, 0)) == 4
    assert widest(4096, at(BFLOAT16, 2), at(np.float32, 0)) == 2


def loaded(x, thread_map, row):
    """What every thread loads of a row: (threads, elements), float32, NaN where nothing was written."""
    load_row = row_loader(thread_map)
    elements, width = thread_map.elements, thread_map.width

    @cuda.jit
    def kernel(x, row, out):
        values = cuda.local.array(elements, float32)
        for k in range(elements):
            values[k] = float32(np.nan)
        load_row(values, x, row, cuda.threadIdx.x * width)
        for k in range(elements):
            out[cuda.threadIdx.x, k] = values[k]

    out = np.full((thread_map.threads, elements), np.nan, np.float32)
    launch(kernel, 1, thread_map.threads, x, row, out)
    return out


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16, np.float32])
@pytest.mark.parametrize(
    ("n2", "width", "threads"), [(256, 4, 32), (260, 4, 32), (33, 1, 32), (6, 2, 64), (520, 4, 64)]
)
def test_a_thread_has_every_t_th_vector_and_zeros_past_the_end(dtype, n2, width, threads):
    thread_map = map_threads(n2, width, threads)
    x = np.random.default_rng(0).normal(size=(3, n2)).astype(dtype)
    padded = np.zeros(thread_map.columns, np.float32)
    padded[:n2] = x[1]
    want = padded.reshape(thread_map.vectors, threads, width).transpose(1, 0, 2).reshape(threads, -1)
    np.testing.assert_array_equal(loaded(x, thread_map, 1), want)


@pytest.mark.parametrize("dtype", [BFLOAT16, np.float16, np.float32])
def test_whole_warps_of_the_forward_ask_for_16_sectors_a_time(dtype):
    """A lane asks for 16 bytes, and 32 lanes for 512: 16 sectors of x, weight, bias and output."""
    n1, n2 = 2, 4096 // np.dtype(dtype).itemsize  # eight times 512 bytes
    rng = np.random.default_rng(0)
    x, output = rng.normal(size=(2, n1, n2)).astype(dtype)
    weight, bias = rng.normal(size=(2, n2)).astype(dtype)
    launch, found = counter()
    problem = ForwardProblem(x, weight, bias, np.float32(1e-5), output, *np.empty((2, n1), np.float32))
    VECTORS.run(launch, None, problem)
    (metrics,) = found
    requests, sectors = ([metrics[op.format(what)] for op in (LOADED, STORED)] for what in ("requests", "sectors"))
    assert requests == [n1 * 8 * 3, n1 * (8 + 2)]  # two: mean and invvar, by one lane
    assert sectors == [16 * n1 * 8 * 3, n1 * (16 * 8 + 2)]
