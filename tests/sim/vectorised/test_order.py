"""Where lanes of a warp are rounds ahead of others, the vectorised engine keeps the scheduler's order of threads."""

import numpy as np
import pytest
from numba import cuda, float32, int32
from sim.vectorised.engines import VECTORISED, agree


@cuda.jit
def tickets_after_a_shuffle_of_half_a_warp(x, counter, out):
    i = cuda.grid(1)
    if i % 32 < 16:
        x[i] = cuda.shfl_xor_sync(0xFFFF, x[i], 1)
    out[i] = cuda.atomic.add(counter, 0, 1)


@cuda.jit
def sums_after_a_shuffle_of_half_a_warp(x, total):
    i = cuda.grid(1)
    if i % 32 < 16:
        x[i] = cuda.shfl_xor_sync(0xFFFF, x[i], 1)
    cuda.atomic.add(total, 0, x[i])


@cuda.jit
def sums_after_halves_that_meet_one_after_the_other(x, total):
    shared = cuda.shared.array(1, float32)
    t = cuda.threadIdx.x
    if t == 0:
        shared[0] = 0.0
    cuda.syncthreads()
    if t % 2:
        cuda.syncwarp(0xAAAAAAAA)
        cuda.syncwarp(0xAAAAAAAA)
    else:
        cuda.syncwarp(0x55555555)
    cuda.atomic.add(shared, 0, x[cuda.grid(1)])
    cuda.syncwarp()
    cuda.atomic.add(shared, 0, x[cuda.grid(1)] * float32(0.3))
    cuda.syncthreads()
    if t == 0:
        cuda.atomic.add(total, 0, shared[0])


@cuda.jit
def a_loop_over_numbers_of_each_lane_left_early(x, total):
    i = cuda.grid(1)
    number = int32(0)
    for step in (i, 4, 2 * i, i % 5):
        if step % 3 == 2:
            break
        number += step
    x[i] = number


@pytest.mark.parametrize(
    "kernel",
    [
        sums_after_a_shuffle_of_half_a_warp,
        sums_after_halves_that_meet_one_after_the_other,
        a_loop_over_numbers_of_each_lane_left_early,
    ],
    ids=lambda kernel: kernel.py_func.__name__,
)
def test_lanes_that_are_rounds_apart_leave_the_schedulers_bits(kernel):
    x = np.random.default_rng(0).normal(size=256).astype(np.float32)
    assert agree(kernel, (4, 64), x, np.zeros(1, np.float32)) == VECTORISED


def test_atomics_whose_results_are_used_are_done_in_the_schedulers_order():
    x = np.arange(256, dtype=np.float32)
    given = x, np.zeros(1, np.int32), np.zeros(256, np.int32)
    assert agree(tickets_after_a_shuffle_of_half_a_warp, (4, 64), *given) == VECTORISED
