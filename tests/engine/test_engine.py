"""The engine room: choosing a world, launching, and the intrinsics in all worlds."""

import ml_dtypes
import needs
import numpy as np
import pytest

from normlab import engine
from normlab.engine import cast, compile_ptx, cuda, flat, float32, gpu_available, launch, load, store, using
from normlab.engine.compile.compiler import TypingError

FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


@cuda.jit
def round_trip(source, target, index):
    i = cuda.grid(1)
    if i < index.shape[0]:
        store(target, (0, index[i]), load(source, index[i]) + cast(1, target))


@pytest.mark.parametrize("target", FLOATS)
@pytest.mark.parametrize("source", FLOATS)
def test_load_widens_and_store_rounds_to_nearest(source, target):
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=60), [np.inf, -np.inf, np.nan, 0.0]]).astype(source)
    got = np.zeros((1, 64), target)
    launch(round_trip, 2, 32, x, got, np.arange(64))
    wide = np.float64 if np.float64 in (source, target) and source is np.float64 else np.float32
    one = np.dtype(target).type(1)
    with np.errstate(over="ignore"):
        want = (x.astype(wide) + (one if target is np.float64 else np.float32(one))).astype(target)
    if target is ml_dtypes.bfloat16 and source is np.float64:  # rounded through float32
        want = (x.astype(np.float64) + 1).astype(np.float32).astype(target)
    np.testing.assert_array_equal(got[0].astype(np.float64), want.astype(np.float64))


@cuda.jit
def add_one_to_all(x):
    every = flat(x)
    i = cuda.threadIdx.x
    if i < every.shape[0]:
        store(every, i, load(every, i) + float32(1))


def test_a_flat_array_is_the_array_itself_with_one_axis():
    x = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    launch(add_one_to_all, 1, 32, x)
    assert (x == np.arange(1, 13).reshape(2, 2, 3)).all()


@cuda.jit
def facts(x, absent, matrix, block, out):
    out[0] = x.size
    out[1] = x.strides[0]
    out[2] = x.itemsize
    out[3] = matrix.size
    out[4] = matrix.strides[0]
    out[5] = matrix.strides[1]
    out[6] = block.size
    out[7] = block.strides[0]
    out[8] = block.strides[1]
    out[9] = block.strides[2]
    out[10] = block.shape[0] * 100 + block.shape[1] * 10 + block.shape[2]


def test_what_a_kernel_reads_of_an_array_without_being_handed_it_is_right():
    """A kernel is handed an array's address and lengths (`entries`); its size and strides follow from them."""
    x, matrix, block = np.zeros(7, np.float16), np.zeros((3, 5)), np.zeros((2, 4, 6), np.float32)
    out = np.full(11, -1, np.int64)
    launch(facts, 1, 1, x, None, matrix, block, out)
    assert out.tolist() == [7, 2, 2, 15, 40, 8, 48, 96, 24, 4, 246]


@cuda.jit
def optional(x, scale, out):
    i = cuda.threadIdx.x
    if scale is not None:
        out[i] = x[i] * scale[0]
    else:
        out[i] = x[i]


def test_none_stands_for_an_absent_array():
    x, out = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    launch(optional, 1, 4, x, None, out)
    assert (out == x).all()
    launch(optional, 1, 4, x, np.float32([3]), out)
    assert (out == 3 * x).all()


def test_an_unknown_world_is_refused():
    with pytest.raises(ValueError, match="unknown engine 'tpu': choose one of auto, gpu, simulator"), using("tpu"):
        pass


@pytest.mark.skipif(gpu_available(), reason="this machine has a GPU")
def test_the_gpu_world_needs_a_gpu():
    with pytest.raises(RuntimeError, match="needs an NVIDIA GPU and its driver; none was found"), using("gpu"):
        pass


def test_worlds_nest_and_end():
    with using("simulator"):
        assert not engine.use_gpu()
    assert engine.use_gpu() == gpu_available()


@cuda.jit
def last_writer(out):
    out[0] = cuda.threadIdx.x


def test_the_simulator_s_schedule_can_be_chosen():
    for schedule, winner in (("forward", 31), ("reverse", 0)):
        out = np.full(1, -1)
        with using("simulator", schedule):
            launch(last_writer, 1, 32, out)
        assert out[0] == winner


@needs.compiler
@pytest.mark.parametrize("cc", [(8, 0), (9, 0)])
def test_ptx_is_made_without_a_gpu(cc):
    ptx = compile_ptx(round_trip, ((np.float32, 1), (ml_dtypes.bfloat16, 2), (np.int64, 1)), cc)
    assert f".target sm_{cc[0]}{cc[1]}" in ptx
    assert "cvt.rn.bf16.f32" in ptx


@cuda.jit
def one_index_of_two(source, target):
    store(target, (0, 0), load(source, 0))


@cuda.jit
def two_indices_of_one(source, target):
    store(target, (0, 0), load(source, (0, 1)))


@cuda.jit
def half_an_index(source, target):
    store(target, (0, 0.5), float32(1))


@needs.compiler
@pytest.mark.parametrize(
    ("kernel", "axes", "given"),
    [(one_index_of_two, 2, "int64"), (two_indices_of_one, 1, "int64, int64"), (half_an_index, 1, "int64, float64")],
)
def test_an_index_other_than_one_int_per_axis_is_refused(kernel, axes, given):
    with pytest.raises(TypingError, match=f"one int per axis, but got {given}\n"):
        compile_ptx(kernel, ((np.float32, axes), (np.float32, 2)))


@cuda.jit
def reverse_in_shared_memory(x, y):
    buffer = cuda.shared.array(0, float32)  # as long as the launch says
    for i in range(cuda.threadIdx.x, x.shape[0], cuda.blockDim.x):
        buffer[i] = x[i]
    cuda.syncthreads()  # all of x is in shared memory before it is read backwards
    for i in range(cuda.threadIdx.x, x.shape[0], cuda.blockDim.x):
        y[i] = buffer[x.shape[0] - 1 - i]


@pytest.mark.parametrize("count", [1000, 25_000, 40_000])  # 4, 100 and 160 KB
def test_dynamic_shared_memory_is_as_large_as_asked_for(count):
    x = np.arange(count, dtype=np.float32)
    y = np.zeros_like(x)
    launch(reverse_in_shared_memory, 1, 256, x, y, shared_bytes=4 * count)
    np.testing.assert_array_equal(y, x[::-1])


@pytest.mark.skipif(not gpu_available(), reason="needs a GPU")
def test_device_arrays_are_computed_in_place_and_copied_back():
    x = engine.to_device(np.arange(4, dtype=np.float32))
    out = engine.device_empty((4,), np.float32)
    launch(optional, 1, 4, x, engine.to_device(np.float32([2])), out)
    assert engine.to_host(out).tolist() == [0, 2, 4, 6]


@pytest.mark.skipif(not gpu_available(), reason="needs a GPU")
def test_a_launch_that_the_driver_refuses_names_kernel_and_configuration():
    x = engine.to_device(np.arange(4, dtype=np.float32))
    with pytest.raises(RuntimeError, match=r"could not launch optional\[1, 2048\], .*: CUDA_ERROR_INVALID_VALUE"):
        launch(optional, 1, 2048, x, None, x)


def test_a_launch_names_what_it_cannot_take():
    on_gpu = "all on the host or all on the device, numbers and None, but got builtins[.]list"
    with pytest.raises(TypeError, match=on_gpu if gpu_available() else "list"):
        launch(optional, 1, 4, np.zeros(4, np.float32), [1.0], np.zeros(4, np.float32))


def test_a_grid_of_four_dimensions_is_refused():
    with pytest.raises(ValueError, match="dimensions"):
        launch(optional, (1, 1, 1, 1), 4, np.zeros(4, np.float32), None, np.zeros(4, np.float32))
