"""The advice of a finding, followed to the letter, leaves nothing to find; and it names the lines that are meant."""

import inspect

import numpy as np
import pytest
from numba import cuda, float32, int32
from sim.planted.collection import floats, mended

from normlab.sim import sanitize
from normlab.sim.sanitizing.loops import loops_of

FULL = 0xFFFFFFFF


def ints(size=1):
    return np.zeros(size, np.int32)


def line_of(kernel, text):
    """The number of the one line of a kernel that holds `text`, counted from the line behind the decorator."""
    lines, first = inspect.getsourcelines(kernel.py_func)
    (found,) = [first + number for number, line in enumerate(lines) if text in line]
    return found


@cuda.jit
def sum_without_barrier(x, out):
    buffer = cuda.shared.array(256, float32)
    thread = cuda.threadIdx.x
    buffer[thread] = x[thread]
    cuda.syncthreads()
    step = cuda.blockDim.x // 2
    while step > 0:
        if thread < step:
            buffer[thread] += buffer[thread + step]
        step //= 2
        # FIX adds: cuda.syncthreads()
    if thread == 0:
        out[0] = buffer[0]


@pytest.mark.parametrize("threads", [64, 256])
def test_a_loop_without_a_barrier_gets_one_at_the_end_of_its_body(threads):
    (finding,) = sanitize(sum_without_barrier)[1, threads](floats(256), floats(1)).findings
    assert finding.advice.endswith("put cuda.syncthreads() at the end of the loop's body, outside of any if")
    assert (finding.first.operation, finding.second.operation) == ("write", "read")
    assert sanitize(mended(sum_without_barrier))[1, threads](floats(256), floats(1)).ok


@cuda.jit
def sum_with_shuffles_in_its_loop(x, out):
    buffer = cuda.shared.array(256, float32)
    thread = cuda.threadIdx.x
    buffer[thread] = x[thread]
    cuda.syncthreads()
    step = cuda.blockDim.x // 2
    while step > 0:
        step = cuda.shfl_sync(FULL, step, 0)
        if thread < step:
            buffer[thread] += buffer[thread + step]
        step //= 2
        # FIX adds: cuda.syncthreads()
    if thread == 0:
        out[0] = buffer[0]


def test_a_shuffle_in_a_loop_is_no_barrier():
    (finding,) = sanitize(sum_with_shuffles_in_its_loop)[1, 128](floats(256), floats(1)).findings
    assert finding.advice.endswith("put cuda.syncthreads() at the end of the loop's body, outside of any if")
    assert sanitize(mended(sum_with_shuffles_in_its_loop))[1, 128](floats(256), floats(1)).ok


@pytest.mark.parametrize(("call", "is_one"), [("copy_async", False), ("cuda.syncwarp", True), ("grid.sync", True)])
def test_a_loop_with_asynchronous_copies_has_no_barrier(call, is_one):
    lines = f"def kernel(grid):\n    for k in range(3):\n        {call}()\n"
    (code,) = [part for part in compile(lines, "a test", "exec").co_consts if hasattr(part, "co_code")]
    assert [barrier for _, barrier in loops_of(code)] == [is_one]


@cuda.jit
def scan_in_place(x, out):
    buffer = cuda.shared.array(64, float32)
    thread = cuda.threadIdx.x
    buffer[thread] = x[thread]
    cuda.syncthreads()
    step = 1
    while step < 64:
        if thread >= step:
            buffer[thread] += buffer[thread - step]
        cuda.syncthreads()
        step *= 2
    out[thread] = buffer[thread]


def test_a_loop_with_a_barrier_does_not():
    (finding,) = sanitize(scan_in_place)[1, 64](floats(64), floats(64)).findings
    assert "read into a variable, then cuda.syncthreads(), then write" in finding.advice


@cuda.jit
def last_block_adds_up(x, out, total, counter):
    last = cuda.shared.array(1, int32)
    cuda.atomic.add(total, 1, x[cuda.grid(1)])
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = 1
        last[0] = cuda.atomic.add(counter, 0, 1)
    cuda.syncthreads()
    if last[0] == cuda.gridDim.x - 1 and cuda.threadIdx.x == 0:
        for block in range(cuda.gridDim.x):
            total[0] += out[block]


def test_the_missing_fence_stands_before_the_atomic_that_follows_the_write():
    arguments = floats(128), floats(4), floats(2), ints()
    (finding,) = sanitize(last_block_adds_up)[4, 32](*arguments).findings
    write, signal = line_of(last_block_adds_up, "out[cuda.blockIdx.x] = 1"), line_of(last_block_adds_up, "counter, 0")
    assert f"no fence between the write at line {write} and the atomic at line {signal} that" in finding.advice


@cuda.jit
def flag_within_the_block(x, flag, fenced):
    if cuda.threadIdx.x == 0:
        x[0] = 1
        if fenced:
            cuda.threadfence_block()
        cuda.atomic.add(flag, 0, 1)
    elif cuda.threadIdx.x == 32:
        while cuda.atomic.add(flag, 0, 0) == 0:
            pass
        x[1] = x[0]


def test_a_flag_within_a_block_lacks_a_fence_and_not_a_barrier():
    (finding,) = sanitize(flag_within_the_block)[1, 64](floats(2), ints(), False).findings
    assert finding.advice.endswith("that tells another thread of it: put cuda.threadfence_block() there")
    assert sanitize(flag_within_the_block)[1, 64](floats(2), ints(), True).ok


@cuda.jit
def shuffled_in_a_branch(x, out):
    if cuda.threadIdx.x < 16:
        out[cuda.threadIdx.x] = cuda.shfl_down_sync(FULL, x[cuda.threadIdx.x], 8)


def test_a_lane_that_skips_the_branch_is_not_said_to_have_returned():
    (finding,) = sanitize(shuffled_in_a_branch)[1, 32](floats(32), floats(32)).findings
    assert "lane 8 reads from lane 16, which does not come to this call" in finding.advice
    assert "mask (" not in finding.advice.split(":")[1]


@cuda.jit
def through_an_array_in_a_field(a, k):
    a[0].v[k] = 1


@cuda.jit
def through_a_row(a, k):
    row = a[0]
    row[k] = 1


@cuda.jit
def through_a_slice(a, k):
    part = a[2:6]
    part[k] = 1


@cuda.jit
def through_a_column_of_records(a, k):
    a.x[k] = 1


@cuda.jit
def through_a_function(a, k):
    set_one(a, k)


@cuda.jit(device=True)
def set_one(b, k):
    b[k] = 1


WITH_ARRAY = np.zeros(7, [("x", np.float32), ("v", np.float32, 4)])


@pytest.mark.parametrize(
    ("kernel", "array", "part"),
    [
        (through_an_array_in_a_field, WITH_ARRAY, True),
        (through_an_array_in_a_field, WITH_ARRAY[:4], True),
        (through_a_row, np.zeros((9, 4)), True),
        (through_a_slice, np.zeros(9), True),
        (through_a_column_of_records, WITH_ARRAY[:4], False),
        (through_a_function, np.zeros(4), False),
    ],
)
def test_an_index_into_a_part_of_an_array_is_held_to_the_part(kernel, array, part):
    (beyond,) = sanitize(kernel)[1, 1](array, 4).findings
    (before,) = sanitize(kernel)[1, 1](array, -1).findings
    if part:
        assert "outside of axis 0 of this part of 'a', which has 4 elements" in beyond.advice
        assert "a.shape" not in beyond.advice + before.advice
    else:
        assert beyond.advice.endswith("of 'a', which has 4 elements: guard the access by a comparison with a.shape[0]")
        assert "or write a.shape[0] - 1 if that is meant" in before.advice
