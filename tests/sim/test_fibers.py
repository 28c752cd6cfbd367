"""Fibers serve launch after launch, and keep none of them alive."""

import ctypes
import gc
import threading
import weakref
from contextvars import ContextVar

import greenlet
import numpy as np
import pytest
from numba import cuda

from normlab.sim import simulate
from normlab.sim.api import Cuda
from normlab.sim.fibers import KEPT, Fiber, fibers
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


def test_what_is_idle_keeps_nothing_of_its_caller_alive():
    class Value:
        pass

    variable: ContextVar = ContextVar("variable")
    value, seen = Value(), []
    gone = weakref.ref(value)
    token = variable.set(value)
    launch(lambda: seen.append(type(variable.get())), 1, 4)
    variable.reset(token)
    del value, token
    gc.collect()
    assert seen == [Value] * 4
    assert gone() is None
    assert len(fibers().idle) == 4


def test_a_launch_in_a_greenlet_leaves_none_that_would_keep_it():
    ran = []
    greenlet.greenlet(lambda: launch(lambda: ran.append(0), 1, 4)).switch()
    assert len(ran) == 4
    assert fibers().idle == []


def launch(call, blocks, threads):
    """Run a function of the host's for every thread: it may do what a kernel cannot, but a debugger in one can."""
    grid, block = Dim3(blocks, 1, 1), Dim3(threads, 1, 1)
    api = Cuda(grid, block, 0)
    api.grid_run = Grid(api, "host", call, grid, block, schedule_order("forward"))
    api.grid_run.run()


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "backtrace"), reason="this C library does not tell its frames")
def test_numpy_s_look_down_the_stack_ends_within_a_fiber_s_own_frames():
    """It takes ten (NPY_MAX_STACKSIZE in its temp_elision.c); 16 with the few of the call that asks here."""
    libc, addresses, found = ctypes.CDLL(None), (ctypes.c_void_p * 64)(), []
    libc.backtrace_symbols.restype = ctypes.POINTER(ctypes.c_char_p)

    def look():
        count = libc.backtrace(addresses, 64)
        names = libc.backtrace_symbols(addresses, count)
        found.append([b"greenlet" in names[frame] for frame in range(count)].index(True))

    launch(look, 1, 2)
    assert min(found) >= 16


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
    assert fibers().idle == []
    x = np.zeros(64)
    simulate(add_one)[1, 64](x)
    assert (x == 1).all()


@pytest.mark.parametrize("at", range(1, 8))
def test_an_interrupt_at_any_moment_leaves_no_dead_fiber_to_the_next_launch(at, monkeypatch):
    """Also between the moments in which a fiber is taken back, and in which it runs somebody else."""
    following, calls = Grid.following, []

    def interrupted(grid):
        calls.append(grid)
        if len(calls) == at:
            raise KeyboardInterrupt
        return following(grid)

    simulate(add_one)[1, 64](np.zeros(64))
    with monkeypatch.context() as patch:
        patch.setattr(Grid, "following", interrupted)
        with pytest.raises(KeyboardInterrupt):
            simulate(add_one)[2, 4](np.zeros(8))
    x = np.zeros(64)
    simulate(add_one)[1, 64](x)
    assert (x == 1).all()


def test_a_thread_that_does_not_let_itself_be_ended_leaves_no_dead_fiber_either():
    @cuda.jit
    def stubborn(x):
        try:
            if cuda.threadIdx.x == 3:
                x[99] = 1
            cuda.syncthreads()
        except BaseException:
            if cuda.threadIdx.x == 3:
                raise

    with pytest.raises(IndexError):
        simulate(stubborn)[1, 4](np.zeros(4))
    x = np.zeros(64)
    simulate(add_one)[1, 64](x)
    assert (x == 1).all()


def test_a_launch_inside_another_one_leaves_the_outer_one_s_threads_to_it():
    ran, x = [], np.zeros(4)

    def call():
        simulate(add_one)[1, 4](x)
        ran.append(len(ran))

    launch(call, 2, 2)
    assert len(ran) == 4
    assert (x == 4).all()


def test_launches_that_take_turns_do_not_mix():
    """As greenlets of other libraries may."""
    told, hub = {"one": [], "other": []}, greenlet.getcurrent()
    running = {}

    def caller(name):
        def call():
            told[name].append("begins")
            running[name] = greenlet.getcurrent()
            hub.switch()
            told[name].append("ends")

        return greenlet.greenlet(lambda: launch(call, 1, 3))

    running.update({name: caller(name) for name in told})
    for _ in range(4):
        for name in told:
            running[name].switch()
    assert told == {"one": ["begins", "ends"] * 3, "other": ["begins", "ends"] * 3}


def test_every_thread_of_the_process_has_its_own_and_leaves_none_behind():
    x, failed = np.zeros(64), []

    def launches():
        try:
            for _ in range(2):
                simulate(add_one)[1, 64](x)
        except BaseException as error:
            failed.append(error)

    launches()
    mine = set(fibers().idle)
    other = threading.Thread(target=launches)
    other.start()
    other.join()
    gc.collect()
    assert {one for one in gc.get_objects() if type(one) is Fiber} == mine
    launches()
    assert failed == []
    assert (x == 6).all()
