"""Launching through the driver: here through a fake one, which simulates what the packed parameters say."""

import math
import threading
import time

import ml_dtypes
import numpy as np
import pytest
from engine.fake_driver import fake_driver
from engine.fake_interface import fake_memory
from threads import together

from normlab.engine import DeviceArray, compute_capability, cuda, device_zeros, launch, multiprocessors, prepare
from normlab.engine.launching import arrays
from normlab.engine.launching.arrays import SIMULATED_MULTIPROCESSORS
from normlab.engine.launching.driver import MAX_DYNAMIC_SHARED_BYTES, NON_PORTABLE_CLUSTER_SIZE, RELAXED


@pytest.fixture
def library(monkeypatch):
    return fake_driver(monkeypatch)


def on_device(array, device=0):
    strides = None if array.flags.c_contiguous else array.strides
    return DeviceArray(array.ctypes.data, array.shape, array.dtype, device, array, strides)


@cuda.jit
def everything(out, matrix, absent, half, single, double, integer, flag):
    i = cuda.threadIdx.x
    if absent is None and flag:
        out[i] = matrix[1, i] + half + single + double + integer


def test_all_kinds_of_arguments_arrive(library):
    out = np.zeros(3)
    matrix = np.arange(24, dtype=np.float32).reshape(4, 6)[::2, ::2]
    scalars = np.float16(0.5), np.float32(0.25), 0.125, -7, True
    launch(everything, 1, 3, on_device(out), on_device(matrix), None, *scalars)
    np.testing.assert_array_equal(out, matrix[1].astype(float) + 0.5 + 0.25 + 0.125 - 7)


@cuda.jit
def copy(source, target):
    i = cuda.grid(1)
    if i < target.shape[0]:
        target[i] = source[i]


def test_bfloat16_arrives(library):
    source, target = np.arange(5).astype(ml_dtypes.bfloat16), np.zeros(5, ml_dtypes.bfloat16)
    launch(copy, 1, 8, on_device(source), on_device(target))
    np.testing.assert_array_equal(source, target)


def some_arrays(device=0):
    return on_device(np.ones(4), device), on_device(np.zeros(4), device)


def test_the_configuration_arrives(library):
    library.run = lambda *args: None
    launch(copy, (6, 2, 3), (8, 4), *some_arrays(), stream=99, shared_bytes=1000, cluster=3)
    launch(copy, 5, 7, *some_arrays())
    assert [call for call in library.calls if call[0] == "launch"] == [
        ("launch", (6, 2, 3), (8, 4, 1), 1000, 99, 3),
        ("launch", (5, 1, 1), (7, 1, 1), 0, None, 1),
    ]


def test_a_kernel_is_compiled_and_loaded_once_and_may_be_loaded_while_a_graph_is_captured(library):
    for _ in range(3):
        launch(copy, 1, 4, *some_arrays())
    assert library.compiled == [("copy", (9, 0))]
    assert [call for call in library.calls if call[0] == "load"] == [("load", 1000, RELAXED)]
    assert library.mode == 0
    launch(copy, 1, 4, *(view._replace(dtype=np.dtype(np.int64)) for view in some_arrays()))  # other kinds
    assert len(library.compiled) == 2


def test_the_driver_is_asked_once_for_dynamic_shared_memory_and_for_large_clusters(library):
    library.run = lambda *args: None
    for shared_bytes, cluster in [(0, 1), (49152, 8), (40000, 1), (60000, 1), (50000, 16), (60000, 8)]:
        launch(copy, 16, 4, *some_arrays(), shared_bytes=shared_bytes, cluster=cluster)
    assert [call for call in library.calls if call[0] == "attribute"] == [
        ("attribute", MAX_DYNAMIC_SHARED_BYTES, 49152),
        ("attribute", MAX_DYNAMIC_SHARED_BYTES, 60000),
        ("attribute", NON_PORTABLE_CLUSTER_SIZE, 1),
    ]


@pytest.mark.parametrize(
    ("configuration", "options", "kind", "text"),
    [
        ((1, 2048), {}, RuntimeError,
         r"could not launch copy\[1, 2048\], shared_bytes=0, cluster=1: CUDA_ERROR_INVALID_VALUE \(invalid argument\)"),
        (((2, 3), (64, 64)), {"cluster": 2, "shared_bytes": 9}, RuntimeError,
         r"could not launch copy\[\(2, 3, 1\), \(64, 64, 1\)\], shared_bytes=9, cluster=2: CUDA_ERROR_INVALID"),
        ((1, 4), {"shared_bytes": 300_000}, RuntimeError, "could not give copy 300000 bytes of dynamic shared memory"),
        ((6, 4), {"cluster": 4}, ValueError, r"a multiple of the cluster's 4 blocks along x, got grid \(6, 1, 1\)"),
        ((6, 4), {"cluster": 0}, ValueError, "a multiple of the cluster's 0 blocks along x"),
        ((6, 4), {"shared_bytes": -1}, ValueError, "shared_bytes is at least 0, got -1"),
        ((0, 4), {}, ValueError, "dimensions of a grid or a block are at least 1 and below 2\\*\\*31, got 0"),
        ((2**32 + 1, 4), {}, ValueError, "below 2\\*\\*31, got 4294967297"),
        (((1, 1, 1, 1), 4), {}, ValueError, "one to three dimensions"),
    ],
)  # fmt: skip
def test_a_launch_that_cannot_be_says_why(library, configuration, options, kind, text):
    with pytest.raises(kind, match=text):
        launch(copy, *configuration, *some_arrays(), **options)


def test_clusters_need_compute_capability_9(monkeypatch):
    fake_driver(monkeypatch, capability=(8, 0))
    with pytest.raises(ValueError, match=r"copy asks for clusters of 2 blocks, .* 9.0 or higher; GPU 0 has 8.0"):
        launch(copy, 2, 4, *some_arrays(), cluster=2)


def test_an_argument_of_another_kind_is_refused(library):
    with pytest.raises(TypeError, match=r"all on the host or all on the device.*but got builtins\.list"):
        launch(copy, 1, 4, [1.0], some_arrays()[1])


@pytest.mark.parametrize(("gpu", "known"), [(True, ((8, 0), 132)), (False, ((9, 0), SIMULATED_MULTIPROCESSORS))])
def test_a_host_array_is_computed_by_gpu_0_or_by_a_simulated_h200(monkeypatch, gpu, known):
    library = fake_driver(monkeypatch, capability=(8, 0))
    monkeypatch.setattr(arrays, "use_gpu", lambda: gpu)
    assert (compute_capability(np.zeros(1)), multiprocessors(np.zeros(1))) == known
    assert compute_capability(some_arrays()[0]) == library.capability


@pytest.mark.parametrize("shape", [(2, 3), (), (0, 4)])
def test_zeros_are_made_on_the_stream_that_is_asked_for(monkeypatch, library, shape):
    fake_memory(monkeypatch)
    zeros = device_zeros(shape, np.float64, 0, 99)
    size = 8 * math.prod(shape)
    assert (zeros.shape, zeros.dtype, zeros.device) == (shape, np.float64, 0)
    assert not zeros.owner[:size].any()
    assert library.calls == ([("memset", zeros.pointer, size, 99)] if size else [])
    assert library.stack() == []


# ---- contexts, devices, threads -------------------------------------------------------------------------------------


def test_a_thread_without_a_context_and_one_with_another_s_launch_all_the_same(library):
    source, target = np.arange(4.0), np.zeros(4)
    launch(copy, 1, 4, on_device(source), on_device(target))
    assert library.stack() == []
    np.testing.assert_array_equal(target, source)
    target[:] = 0
    library.stack().append(55)
    launch(copy, 1, 4, on_device(source), on_device(target))
    assert library.stack() == [55]
    np.testing.assert_array_equal(target, source)


def test_with_two_gpus_each_runs_what_lies_on_it(monkeypatch):
    library = fake_driver(monkeypatch, devices=2)
    for device in (1, 0, 1):
        source, target = np.arange(4.0) + device, np.zeros(4)
        launch(copy, 1, 4, on_device(source, device), on_device(target, device))
        np.testing.assert_array_equal(target, source)
    assert [call for call in library.calls if call[0] == "load"] == [("load", 1001, RELAXED), ("load", 1000, RELAXED)]
    assert library.stack() == []
    with pytest.raises(ValueError, match=r"different GPUs: \[0, 1\]"):
        launch(copy, 1, 4, some_arrays(0)[0], some_arrays(1)[1])


def test_two_threads_in_one_prepared_launch_keep_their_addresses_apart(library):
    first = some_arrays()
    prepared = prepare(copy, 1, 4, *first)
    prepared.patches = tuple((slot, position, 0) for position, slot in enumerate(prepared.slots))
    sources, targets = [np.full(4, 1.0), np.full(4, 2.0)], [np.zeros(4), np.zeros(4)]
    prepared(0, [array.pointer for array in first])  # leaves a block of parameters for the next call
    both_inside = threading.Barrier(2, timeout=10)
    library.before_reading = both_inside.wait
    calls = [lambda k=k: prepared(0, [sources[k].ctypes.data, targets[k].ctypes.data]) for k in range(2)]
    together(calls)
    np.testing.assert_array_equal(targets, sources)


def test_many_threads_that_meet_a_new_kernel_compile_it_once(library, monkeypatch):
    from normlab.engine.compile import cubins

    compile_at_once = cubins.cubin

    def slow(*args):
        time.sleep(0.05)
        return compile_at_once(*args)

    monkeypatch.setattr(cubins, "cubin", slow)
    results = [some_arrays() for _ in range(8)]
    together([lambda pair=pair: launch(copy, 1, 4, *pair) for pair in results])
    assert len(library.compiled) == 1
    assert all((target.owner == 1).all() for _, target in results)
