"""Fibers serve launch after launch, and keep none of them alive."""

import gc
import threading
import weakref

import numpy as np
import pytest
from numba import cuda

from normlab.sim import simulate
from normlab.sim.api import Cuda
from normlab.sim.fibers import KEPT, fibers
from normlab.sim.scheduler import Dim3, Grid, schedule_order


@cuda.jit
def add_one(x):
    i = cuda.grid(1)
    if i < len(x):
        x[i] += 1


@pytest.fixture(autouse=True)
def _none_yet():
    fibers().idle.clear()


def test_a_later_launch_has_the_fibers_of_an_earlier_one():
    x = np.zeros(64)
    simulate(add_one)[1, 64](x)
    first = set(fibers().idle)
    simulate(add_one)[1, 64](x)
    assert set(fibers().idle) == first
    assert len(first) == 64
    assert (x == 2).all()


def test_no_more_are_kept_than_a_block_needs():
    simulate(add_one, cluster=2)[2, 1024](np.zeros(2048))
    assert len(fibers().idle) == KEPT


def test_what_is_idle_keeps_nothing_of_its_launch_alive():
    @cuda.jit
    def kernel(x, y):
        shared = cuda.shared.array(32, np.float64)
        shared[cuda.threadIdx.x] = x[cuda.threadIdx.x]
        cuda.syncthreads()
        y[cuda.threadIdx.x] = shared[31 - cuda.threadIdx.x]

    x, y = np.arange(32.0), np.empty(32)
    simulate(kernel)[1, 32](x, y)
    assert (y == x[::-1]).all()
    gone = weakref.ref(x), weakref.ref(kernel)
    del x, kernel
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
    assert len(fibers().idle) == 32


def test_an_error_comes_to_the_launch_that_it_happens_in():
    """Not to the one that made the fiber, whose stack is another one by then."""

    @cuda.jit
    def fails(x):
        cuda.syncthreads()
        x[cuda.threadIdx.x + 60] = 1

    def deeper(depth):
        if depth:
            return deeper(depth - 1)
        with pytest.raises(IndexError, match="index 64 is out of bounds"):
            simulate(fails)[1, 64](np.zeros(64))

    simulate(add_one)[1, 64](np.zeros(64))
    deeper(3)
    x = np.zeros(64)
    simulate(add_one)[1, 64](x)
    assert (x == 1).all()


def test_a_launch_inside_another_one_leaves_the_outer_one_s_threads_to_it():
    """As somebody may who looks around in a debugger, in a kernel."""
    ran, x = [], np.zeros(4)

    def call():
        simulate(add_one)[1, 4](x)
        ran.append(str(api.current.name))

    grid, block = Dim3(2, 1, 1), Dim3(2, 1, 1)
    api = Cuda(grid, block, 0)
    api.grid_run = Grid(api, "outer", call, grid, block, schedule_order("forward"))
    api.grid_run.run()
    assert len(set(ran)) == 4
    assert (x == 4).all()
    assert fibers().grid is None


def test_every_thread_of_the_process_has_its_own():
    x, failed = np.zeros(64), []

    def launch():
        try:
            simulate(add_one)[1, 64](x)
        except BaseException as error:
            failed.append(error)

    launch()
    other = threading.Thread(target=launch)
    other.start()
    other.join()
    launch()
    assert failed == []
    assert (x == 3).all()
    assert len(fibers().idle) == 64
