"""What a launch takes and refuses: kernels, configurations, arguments; and what an exception in a kernel looks like."""

import time
import traceback
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest
import torch
from numba import cuda, njit

from normlab.sim import SimulationError, simulate
from normlab.sim.language.integers import Boolean
from normlab.sim.machine.scheduler import Grid


@cuda.jit
def double(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = x[i] * 2


@pytest.mark.parametrize(
    "dtype",
    ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", ml_dtypes.bfloat16, "c8", "c16"],
)
def test_every_dtype_is_changed_in_place(dtype):
    x = np.arange(10).astype(dtype)
    simulate(double)[1, 32](x)
    np.testing.assert_array_equal(x, (np.arange(10) * 2).astype(dtype))


def test_bool_arrays_are_changed_in_place():
    @cuda.jit
    def invert(x):
        x[cuda.threadIdx.x] = not x[cuda.threadIdx.x]

    x = np.array([True, False, True])
    simulate(invert)[1, 3](x)
    assert list(x) == [False, True, False]


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.uint8]
)
def test_torch_tensors_are_changed_in_place(dtype):
    x = torch.arange(12).to(dtype).reshape(3, 4)
    column = x[:, 1]
    simulate(double)[1, 32](column)
    assert column.tolist() == [2, 10, 18]
    assert x[:, 0].tolist() == [0, 4, 8]


def test_a_tensor_that_requires_grad_is_taken():
    x = torch.ones(3, requires_grad=True)
    simulate(double)[1, 3](x)
    assert x.tolist() == [2, 2, 2]


def test_strided_reversed_and_offset_arrays_are_taken_as_they_are():
    base = np.arange(24, dtype=np.int16).reshape(4, 6)
    expected = base.copy()
    view, same = base[::2, ::-2], expected[::2, ::-2]

    @cuda.jit
    def add(x):
        r, c = cuda.grid(2)
        row = x[r]
        row[c] += 100 * len(x) + x.shape[1]

    simulate(add)[(1, 1), (2, 3)](view)
    same += 203
    np.testing.assert_array_equal(base, expected)


def test_scalars_and_tuples_are_arguments():
    seen = []

    @cuda.jit
    def look(a, b, c, d, e, f):
        seen.extend([a, b, c, d, e, f])

    simulate(look)[1, 1](3, 2.5, True, np.float32(1.5), np.int8(-4), (1, 0.5))
    assert seen == [3, 2.5, True, 1.5, -4, (1, 0.5)]
    assert [type(s) for s in seen[:4]] == [np.int64, np.float64, Boolean, np.float32]
    assert isinstance(seen[4], np.int64)


class OnGpu:
    __cuda_array_interface__ = None


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ([1, 2], "is a list; kernels take NumPy arrays, torch CPU tensors and numbers"),
        ({"a": 1}, "is a dict; kernels take"),
        (np.array([None]), "is an array of object; kernels take arrays of numbers"),
        (np.zeros(1, "V3"), "is an array of |V3; kernels take arrays of numbers"),
        (OnGpu(), "is a OnGpu in a GPU's memory; the simulator takes host memory: copy it to a NumPy array first"),
        (torch.empty(2, device="meta"), "is a tensor on meta; the simulator takes host memory"),
        ("text", "is a str; kernels take"),
    ],
)
def test_an_argument_that_a_kernel_cannot_take_is_refused_by_position_and_type(argument, message):
    @cuda.jit
    def kernel(n, x):
        pass

    with pytest.raises(TypeError) as info:
        simulate(kernel)[1, 1](1, argument)
    assert str(info.value).startswith(f"argument 2 ('x') of kernel 'kernel' {message}")


@pytest.mark.parametrize("arguments", [(), (1, 2)])
def test_a_wrong_number_of_arguments_is_refused(arguments):
    with pytest.raises(TypeError, match=rf"kernel 'double' takes 1 argument \(x\), got {len(arguments)}"):
        simulate(double)[1, 1](*arguments)


def test_a_default_may_be_left_out():
    @cuda.jit
    def kernel(x, value=2.5):
        x[0] = value

    x = np.zeros(1)
    simulate(kernel)[1, 1](x)
    assert x[0] == 2.5


# --- configuration ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grid", [3, (3,), (1, 3), (1, 1, 3), (3, 2), np.int32(4), (2, np.int64(2), 2)])
@pytest.mark.parametrize("block", [5, (5,), (2, 3), (2, 2, 3), (1, 1, 7), np.int64(40)])
def test_indices_cover_the_grid_once(grid, block):
    @cuda.jit
    def kernel(out, grids):
        x, y, z = cuda.grid(3)
        nx, ny, nz = cuda.gridsize(3)
        out[x, y, z] += 1
        grids[0] = cuda.gridDim.x * cuda.blockDim.x == nx
        grids[1] = cuda.gridDim.y * cuda.blockDim.y == ny
        grids[2] = cuda.gridDim.z * cuda.blockDim.z == nz
        grids[3] = cuda.grid(2) == (x, y) and cuda.grid(1) == x
        grids[4] = cuda.gridsize(2) == (nx, ny) and cuda.gridsize(1) == nx

    def extent(size):
        return np.array([*np.atleast_1d(size), 1, 1])[:3]

    out, grids = np.zeros(extent(grid) * extent(block), np.int64), np.zeros(5, np.bool_)
    simulate(kernel)[grid, block](out, grids)
    assert (out == 1).all()
    assert grids.all()


@pytest.mark.parametrize("engine", ["scheduler", "vectorised"])
def test_a_thread_s_position_is_a_tuple_wherever_it_goes(engine):
    @cuda.jit(device=True)
    def position():
        return cuda.grid(2)

    @cuda.jit
    def kernel(out, sizes):
        here = position()
        out[here] += 1  # an array of two numbers would name two rows
        down, right = cuda.gridsize(2)
        i, j = cuda.grid(2)
        while i < out.shape[0]:
            out[i, j] += 10 * i  # i is counted up, so it is no longer an index as it came
            i += down
        sizes[cuda.grid(2)] = down * 100 + right

    out, sizes = np.zeros((20, 9), np.int64), np.zeros((8, 9), np.int64)
    simulate(kernel, engine=engine)[(2, 3), (4, 3)](out, sizes)
    rows = np.arange(20)[:, None]
    assert (out == 10 * rows + (rows < 8)).all()
    assert (sizes == 809).all()


def test_lanes_count_threads_with_x_fastest():
    @cuda.jit
    def kernel(out):
        t = cuda.threadIdx
        out[t.x + 5 * (t.y + 3 * t.z)] = cuda.laneid

    out = np.zeros(60, np.int32)
    simulate(kernel)[1, (5, 3, 4)](out)
    assert list(out) == [t % 32 for t in range(60)]


def test_a_stream_and_dynamic_shared_bytes_may_follow():
    @cuda.jit
    def kernel(out):
        out[0] = cuda.shared.array(0, np.float32).size

    out = np.zeros(1, np.int64)
    for configuration, size in ((1, 1), 0), ((1, 1, 0), 0), ((1, 1, object(), 44), 11), ((1, 1, 0, np.int64(47)), 11):
        simulate(kernel)[configuration](out)
        assert out[0] == size


@pytest.mark.parametrize(
    ("configuration", "error", "message"),
    [
        ((0, 1), ValueError, r"grid must be at least 1 along every axis, got 0"),
        ((1, (4, -1)), ValueError, r"block must be at least 1 along every axis, got \(4, -1\)"),
        ((1.5, 1), TypeError, r"grid must be an int or a tuple of ints, not the float 1.5"),
        ((1, (2, "a")), TypeError, r"block must be an int or a tuple of ints, not the tuple \(2, 'a'\)"),
        (((1, 1, 1, 1), 1), ValueError, r"grid has 1, 2 or 3 dimensions, not 4: \(1, 1, 1, 1\)"),
        ((1, ()), ValueError, r"block has 1, 2 or 3 dimensions, not 0"),
        ((1, 1025), ValueError, r"block is at most 1024 along x, got 1025"),
        ((1, (32, 33)), ValueError, r"block \(32, 33, 1\) has 1056 threads; a block has at most 1024"),
        ((1, (1, 1, 65)), ValueError, r"block is at most 64 along z"),
        (((1, 65536), 1), ValueError, r"grid is at most 65535 along y, got \(1, 65536\)"),
        (1, ValueError, r"a launch needs \[grid, block\]"),
        ((1,), ValueError, r"a launch needs \[grid, block\]"),
        ((1, 1, 0, 0, 0), ValueError, r"a launch needs \[grid, block\]"),
        ((1, 1, 0, -4), ValueError, r"dynamic shared memory cannot be negative: -4"),
        ((1, 1, 0, 4.5), TypeError, r"dynamic shared memory must be an int, not the float 4.5"),
    ],
)
def test_an_impossible_configuration_is_refused(configuration, error, message):
    with pytest.raises(error, match=message):
        simulate(double)[configuration]


def test_a_missing_configuration_is_refused():
    with pytest.raises(
        ValueError, match=r"kernel 'double' needs a launch configuration: simulate\(double\)\[grid, block\]"
    ):
        simulate(double)(np.zeros(3))


def test_what_is_not_a_kernel_is_refused():
    device = cuda.jit(device=True)(lambda x: x)
    with pytest.raises(TypeError, match="is a device function; only a kernel can be launched"):
        simulate(device)
    for thing in (3, "kernel", np.sin, None):
        with pytest.raises(TypeError, match=r"simulate takes a numba.cuda.jit kernel or a Python function, not the "):
            simulate(thing)


def test_a_plain_function_and_any_dispatcher_are_kernels():
    def plain(x):
        x[cuda.threadIdx.x] = cuda.blockDim.x

    for kernel in (plain, cuda.jit(plain), njit(plain)):
        x = np.zeros(3)
        simulate(kernel)[1, 3](x)
        assert list(x) == [3, 3, 3]


# --- exceptions ------------------------------------------------------------------------------------------------------


def test_an_exception_keeps_its_type_and_traceback_and_gains_block_and_thread():
    @cuda.jit(device=True)
    def fails(x, i):
        y = x[i] / 3
        return x[i + 100] / y

    @cuda.jit
    def kernel(x):
        if cuda.grid(1) == 37:
            x[0] = fails(x, 1)

    with pytest.raises(IndexError, match="index 101 is out of bounds for axis 0 with size 4") as info:
        simulate(kernel)[2, (32,)](np.zeros(4))
    frames = [frame for frame in traceback.extract_tb(info.value.__traceback__) if frame.filename == __file__]
    first = fails.py_func.__code__.co_firstlineno
    assert [frame.name for frame in frames][-2:] == ["kernel", "fails"]
    assert frames[-1].lineno == first + 3
    assert frames[-1].line == "return x[i + 100] / y"
    assert info.value.__notes__ == [
        "'x' is an array of shape (4,)",
        "in kernel 'kernel', block (1, 0, 0), thread (5, 0, 0)",
    ]


def test_a_kernel_may_raise_its_own_exception_and_later_launches_are_clean():
    class OwnError(Exception):
        pass

    @cuda.jit
    def kernel(x, threshold):
        t = cuda.threadIdx.x
        x[t] = 1
        cuda.syncthreads()
        if t == threshold:
            raise OwnError("too much")
        cuda.syncthreads()

    x = np.zeros(64)
    with pytest.raises(OwnError, match="too much") as info:
        simulate(kernel)[1, 64](x, 40)
    assert info.value.__notes__ == ["in kernel 'kernel', block (0, 0, 0), thread (40, 0, 0)"]
    simulate(kernel)[1, 64](x, 64)


def test_print_in_a_kernel_prints(capsys):
    @cuda.jit
    def kernel(x):
        print("thread", cuda.threadIdx.x, x[cuda.threadIdx.x])

    simulate(kernel, "reverse")[1, 2](np.array([0.5, 1.5], np.float32))
    assert capsys.readouterr().out == "thread 1 1.5\nthread 0 0.5\n"


def test_a_printed_tuple_has_numbers_and_not_numpy_s_names(capsys):
    @cuda.jit
    def kernel(x, given):
        print((x[0], 1), given)
        print((cuda.threadIdx.x,), (x[0] + 1, (2.5, True)))

    simulate(kernel)[1, 1](np.array([0.5], np.float32), (3, (4, 5.0)))
    assert capsys.readouterr().out == "(0.5, 1) (3, (4, 5.0))\n(0,) (1.5, (2.5, True))\n"


def test_a_launch_inside_another_greenlet_returns_there():
    import greenlet

    x = np.ones(3)
    worker = greenlet.greenlet(lambda: simulate(double)[1, 3](x))
    worker.switch()
    assert worker.dead
    assert list(x) == [2, 2, 2]


def test_an_index_error_names_its_array():
    @cuda.jit
    def kernel(x, out, n):
        s = cuda.shared.array((4, 2), np.float32)
        t = cuda.threadIdx.x
        s[t % 4, 1] = x[0, t]
        if n == 1:
            out[0] = s[t, 2]
        elif n == 2:
            out[5] /= s[t % 4, 1]
        else:
            x[3, t] = s[0, 0]

    for n, note in ((1, "'s' is a shared array of shape (4, 2)"), (2, "'out' is an array of shape (5,)")):
        with pytest.raises(IndexError) as info:
            simulate(kernel)[1, 8](np.zeros((3, 8), np.float32), np.zeros(5), n)
        assert info.value.__notes__[0] == note
    with pytest.raises(IndexError) as info:
        simulate(kernel)[1, 8](np.zeros((3, 8), np.int32), np.zeros(5), 3)
    assert info.value.__notes__[0] == "'x' is an array of shape (3, 8)"


def test_a_traceback_shows_the_callers_and_the_kernels_lines_only():
    @cuda.jit(device=True)
    def helper(x):
        return x[9]

    @cuda.jit
    def kernel(x):
        cuda.syncthreads()
        x[0] = helper(x)

    with pytest.raises(IndexError) as info:
        simulate(kernel)[1, 8](np.zeros(4))
    names = [frame.name for frame in traceback.extract_tb(info.value.__traceback__)]
    assert names[1:] == ["kernel", "helper"]


def test_more_shared_memory_than_a_block_has_is_refused():
    @cuda.jit
    def kernel():
        cuda.shared.array(8 * 1024, np.float32)
        cuda.shared.array(4 * 1024 + 1, np.float32)

    with pytest.raises(SimulationError, match=r"take 49156 bytes with this one, of shape \(4097,\).* at most 49152"):
        simulate(kernel)[1, 1]()

    @cuda.jit
    def fits():
        cuda.shared.array(12 * 1024, np.float32)
        cuda.shared.array(0, np.float32)

    simulate(fits)[2, 32, 0, 179 * 1024]()
    with pytest.raises(SimulationError, match="and its dynamic shared memory 184320; a block has at most 232448"):
        simulate(fits)[1, 1, 0, 180 * 1024]()
    with pytest.raises(ValueError, match="232449 bytes of dynamic shared memory are more than the 232448"):
        simulate(fits)[1, 1, 0, 227 * 1024 + 1]


def test_a_namedtuple_keeps_its_fields():
    class Pair(NamedTuple):
        array: np.ndarray
        factor: float

    @cuda.jit
    def kernel(pair):
        pair.array[0] = pair.factor * 2

    x = np.zeros(1)
    simulate(kernel)[1, 1](Pair(x, 1.5))
    assert x[0] == 3


def test_blocks_are_made_when_their_turn_comes():
    @cuda.jit
    def kernel(x):
        x[2] = 0

    start = time.process_time()
    with pytest.raises(IndexError):
        simulate(kernel)[2**31 - 1, 1](np.zeros(1))
    assert time.process_time() - start < 1


def test_an_interrupt_before_the_first_thread_runs_stays_one(monkeypatch):
    def interrupted(grid):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Grid, "hand_over", interrupted)
        with pytest.raises(KeyboardInterrupt):
            simulate(double, engine="scheduler")[1, 4](np.zeros(4))
    x = np.ones(4)
    simulate(double)[1, 4](x)
    assert (x == 2).all()
