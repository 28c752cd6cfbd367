"""Kernels that begin before the one ahead of them has ended: what is compiled, and what the driver is told."""

import numpy as np
import pytest
from engine.fake_driver import fake_driver
from engine.test_launching import on_device

from normlab.engine import compile_ptx, cuda, grid_dependency_sync, launch, launch_dependents, using
from normlab.engine.device.dependent import begins_early
from normlab.engine.launching.driver import PROGRAMMATIC_STREAM_SERIALIZATION


@cuda.jit
def first(x):
    launch_dependents()
    x[cuda.threadIdx.x] = 1


@cuda.jit
def second(x, y):
    grid_dependency_sync()
    y[cuda.threadIdx.x] = 2 * x[cuda.threadIdx.x]


def test_only_a_kernel_that_waits_by_itself_begins_early():
    assert begins_early(second)
    assert not begins_early(first)


def test_both_statements_are_there_on_hopper_and_not_before():
    pytest.importorskip("numba_cuda", reason="PTX is made by numba-cuda, which has no wheels for this platform")
    row = np.float32, 1
    assert "griddepcontrol.launch_dependents" in compile_ptx(first, (row,), (9, 0))
    waiting = compile_ptx(second, (row, row), (9, 0))
    assert waiting.index("griddepcontrol.wait") < waiting.index("ld.global")
    assert "griddepcontrol" not in compile_ptx(first, (row,), (8, 0)) + compile_ptx(second, (row, row), (8, 0))


@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
def test_the_driver_is_told_where_it_can_do_so(monkeypatch, capability):
    library = fake_driver(monkeypatch, capability=capability)
    told = []

    def recorded(kernel, config, args):
        told.append([(one.id, one.value[0]) for one in config.attributes[: config.attribute_count]])
        library.simulate(kernel, config, args)

    library.run = recorded
    x, y = np.zeros((2, 4), np.float32)
    launch(first, 1, 4, on_device(x))
    launch(second, 1, 4, on_device(x), on_device(y))
    assert told == [[], [(PROGRAMMATIC_STREAM_SERIALIZATION, 1)] if capability >= (9, 0) else []]
    np.testing.assert_array_equal(y, 2)


def test_in_the_simulator_both_do_nothing():
    x, y = np.zeros((2, 4), np.float32)
    with using("simulator"):
        launch(first, 1, 4, x)
        launch(second, 1, 4, x, y)
    np.testing.assert_array_equal(y, 2)
