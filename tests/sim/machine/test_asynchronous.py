"""Asynchronous copies in the simulator: when they arrive, and what is refused."""

import ml_dtypes
import numpy as np
import pytest
from numba import cuda, float32, uint32

from normlab.engine.device.asynchronous import commit_copies, copy_async, wait_copies
from normlab.sim import SimulationError, sanitize, simulate, trace

SCHEDULES = ("forward", "reverse", 3)
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES)


@cuda.jit
def groups(x, out):
    """Three groups of one copy each; the target's first elements after each step."""
    tile = cuda.shared.array((3, 4), float32, 16)
    for row in range(3):
        for k in range(4):
            tile[row, k] = -1
    for row in range(3):
        copy_async(tile, (row, 0), x, (row, 0), 4)
        commit_copies()
    for row in range(3):
        out[0, row] = tile[row, 0]
    wait_copies(2)
    for row in range(3):
        out[1, row] = tile[row, 0]
    wait_copies(0)
    for row in range(3):
        out[2, row] = tile[row, 3]


def test_groups_arrive_in_order_when_they_are_waited_for_and_no_earlier():
    x, out = np.arange(12, dtype=np.float32).reshape(3, 4), np.zeros((3, 3), np.float32)
    simulate(groups)[1, 1](x, out)
    assert out.tolist() == [[-1, -1, -1], [0, -1, -1], [3, 7, 11]]


@cuda.jit
def pipeline(x, out):
    """Sums of columns through two stages of a buffer."""
    tile = cuda.shared.array((2, 128), float32, 16)
    thread = cuda.threadIdx.x
    first = 4 * (thread % 32)
    total = float32(0)
    if thread < 32:
        copy_async(tile, (0, first), x, (0, first), 4)
    commit_copies()
    for row in range(x.shape[0]):
        if row + 1 < x.shape[0] and thread < 32:
            copy_async(tile, ((row + 1) % 2, first), x, (row + 1, first), 4)
        commit_copies()
        wait_copies(1)
        cuda.syncthreads()
        total += tile[row % 2, 127 - thread]
        cuda.syncthreads()
    out[thread] = total


@every_schedule
def test_a_pipeline_of_two_stages_sums_columns(schedule):
    x, out = np.random.default_rng(0).integers(0, 9, (5, 128)).astype(np.float32), np.zeros(128, np.float32)
    simulate(pipeline, schedule)[1, 128](x, out)
    np.testing.assert_array_equal(out, x.sum(0)[::-1])


@cuda.jit
def never_waited_for(x, out):
    tile = cuda.shared.array(4, float32, 16)
    if cuda.threadIdx.x == 0:
        copy_async(tile, 0, x, 0, 4)
        commit_copies()
    else:
        wait_copies(0)  # for the own copies, of which there are none
    cuda.syncthreads()
    out[cuda.threadIdx.x] = tile[cuda.threadIdx.x]


@cuda.jit
def in_no_group(x, out):
    tile = cuda.shared.array(4, float32, 16)
    copy_async(tile, 0, x, 0, 4)
    wait_copies(0)
    out[cuda.threadIdx.x] = tile[cuda.threadIdx.x]


@every_schedule
@pytest.mark.parametrize("kernel", [never_waited_for, in_no_group], ids=lambda kernel: kernel.py_func.__name__)
def test_what_is_not_waited_for_never_arrives(kernel, schedule):
    out = np.zeros(4, np.float32)
    simulate(kernel, schedule)[1, 4](np.ones(4, np.float32), out)
    assert np.isnan(out).all()


@cuda.jit
def source_changes(x, out):
    tile = cuda.shared.array(4, float32, 16)
    copy_async(tile, 0, x, 0, 4)
    commit_copies()
    x[0] = 7
    wait_copies(0)
    out[0] = tile[0]


def test_the_source_is_read_at_the_start():
    out = np.zeros(1, np.float32)
    simulate(source_changes)[1, 1](np.ones(4, np.float32), out)
    assert out[0] == 1


@cuda.jit
def through_dynamic_memory(x, out):
    words = cuda.shared.array(0, uint32)
    halves = cuda.shared.array(0, ml_dtypes.bfloat16)
    thread = cuda.threadIdx.x
    copy_async(halves, 8 * thread, x, 8 * thread, 8)
    copy_async(words, 32 + 4 * thread, x, 8 * thread, 4)
    commit_copies()
    wait_copies(0)
    out[0, thread] = words[4 * thread]
    out[1, thread] = words[32 + 4 * thread]


@pytest.mark.parametrize("run", [simulate, trace, sanitize])
def test_a_copy_moves_bits_into_memory_of_any_dtype(run):
    x = np.arange(64).astype(ml_dtypes.bfloat16)
    out = np.zeros((2, 8), np.uint32)
    run(through_dynamic_memory)[1, 8, 0, 227 * 1024](x, out)
    np.testing.assert_array_equal(out, [x.view(np.uint32)[::4]] * 2)


@cuda.jit
def one_copy(x, y, start, width_of_4):
    tile = cuda.shared.array(8, float32, 16)
    if width_of_4:
        copy_async(tile, start, x, start, 4)
    else:
        copy_async(tile, start, x, start, 3)


@cuda.jit
def out_of_shared(x, y):
    tile = cuda.shared.array(8, float32, 16)
    copy_async(y, 0, tile, 0, 4)


@cuda.jit
def within_shared(x, y):
    tile = cuda.shared.array(8, float32, 16)
    copy_async(tile, 0, tile, 4, 4)


@cuda.jit
def wait_for_less_than_none(x, y):
    wait_copies(-1)


@pytest.mark.parametrize(
    ("kernel", "arguments", "error", "text"),
    [
        (one_copy, (0, False), SimulationError, "moves 4, 8 or 16 bytes .* but 3 x float32 are 12 bytes"),
        (one_copy, (1, True), SimulationError, "misaligned address: 4 elements of float32 from index 1 on"),
        (one_copy, (8, True), IndexError, "out of bounds"),
        (one_copy, (-4, True), IndexError, "is negative"),
        (out_of_shared, (), SimulationError, "from global into shared memory; its target is in global memory"),
        (within_shared, (), SimulationError, "from global into shared memory; its source is in shared memory"),
        (wait_for_less_than_none, (), SimulationError, "leaves 0 groups or more on their way, not -1"),
    ],
)
def test_what_no_gpu_can_do_is_refused(kernel, arguments, error, text):
    x = np.zeros(16, np.float32)
    with pytest.raises(error, match=text):
        simulate(kernel)[1, 1](x, x.copy(), *arguments)


@cuda.jit
def plain_copy(x):
    tile = cuda.shared.array(8, float32, 16)
    copy_async(tile, 0, x, 0, 1)


def test_a_copy_takes_whole_elements():
    with pytest.raises(SimulationError, match="1 x float32 are 4 bytes, to come from elements of float64"):
        simulate(plain_copy)[1, 1](np.zeros(4))
