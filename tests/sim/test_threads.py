"""The simulator from several threads at once: kernels that no thread has simulated before."""

import gc
import sys
import threading
import time

import numpy as np
import pytest
from numba import cuda

from normlab.sim import sanitize, simulate, trace
from normlab.sim.language import arrays, operators, paths, rewrite
from normlab.sim.machine import launch, observed, scheduler, shuffles

THREADS = 8


@pytest.fixture
def switching():
    """Threads that take turns as often as they can, also inside of C: in what the garbage collector calls."""
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(200)
    gc.callbacks.append(give_way)
    yield
    gc.callbacks.remove(give_way)
    gc.set_threshold(*thresholds)
    sys.setswitchinterval(interval)


def give_way(*_) -> None:
    time.sleep(0)


def at_once(work) -> list[BaseException]:
    """Call work(0), work(1), ... in as many threads, which begin together; return what they raised."""
    start, errors = threading.Barrier(THREADS), []

    def run(number):
        start.wait()
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


@cuda.jit
def add_index(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] += i // 2


def forget() -> None:
    operators._safe_codes.clear()
    operators._compiled.cache_clear()


def test_threads_rewrite_functions_of_large_files_at_once(switching):
    functions = [
        scheduler.schedule_order, launch.extent3, arrays.adopt, observed.pointer, rewrite.names_of, shuffles._source_up,
        paths.calls_of, operators.safe_code,
    ]  # fmt: skip
    for _ in range(5):
        forget()
        assert at_once(lambda _: [operators.safe_code(one.__code__) for one in functions]) == []


def test_threads_simulate_the_same_fresh_kernel_at_once(switching):
    for _ in range(20):
        forget()
        arrays = [np.zeros(40, np.float32) for _ in range(THREADS)]
        assert at_once(lambda number, arrays=arrays: simulate(add_index)[2, 32](arrays[number])) == []
        for array in arrays:
            np.testing.assert_array_equal(array, np.arange(40) // 2)


@pytest.mark.parametrize("look", [trace, sanitize])
def test_threads_watch_the_same_fresh_kernel_at_once(look, switching):
    alone = str(look(add_index)[2, 32](np.zeros(40, np.float32)))
    forget()
    found = [""] * THREADS

    def work(number):
        found[number] = str(look(add_index)[2, 32](np.zeros(40, np.float32)))

    assert at_once(work) == []
    assert found == [alone] * THREADS


def test_threads_choose_their_engines_for_themselves(switching):
    torch = pytest.importorskip("torch")
    from normlab import nn

    x, weight = torch.randn(3, 16), torch.rand(16)
    grads = [None] * THREADS

    def work(number):
        given = x.clone().requires_grad_()
        with nn.engine("simulator" if number % 2 else "auto"):
            output = nn.layer_norm(given, 16, weight, memory_efficient=[False, True, "exact"][number % 3])
        output.backward(torch.ones(3, 16))
        grads[number] = given.grad

    forget()
    assert at_once(work) == []
    for grad in grads:
        torch.testing.assert_close(grad, grads[0], rtol=1e-4, atol=1e-5)
