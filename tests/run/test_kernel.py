"""`cuda.jit`: its forms, its options, how a launch moves arguments, and what a kernel object offers."""

import pickle
from collections import namedtuple

import numba
import numba.core.errors
import numpy as np
import pytest
from numba import boolean, float32, float64, int8, int32, int64, void

from normlab.sim import CompilerError


def test_every_form_of_jit_launches(cuda):
    def one(x):
        x[0] += 1

    forms = [cuda.jit, cuda.jit(), cuda.jit(debug=True, opt=False), cuda.jit(void(int64[:])), cuda.jit("(int64[::1],)")]
    forms += [cuda.jit([void(int64[:]), void(float64[:])], lineinfo=True, launch_bounds=64), cuda.jit((int64[:],))]
    for decorate in forms:
        x = np.zeros(1, np.int64)
        kernel = decorate(one)
        kernel[1, 1](x)
        kernel[(1, 1), [2, 1, 1]](x)
        kernel.configure(1, (1,), cuda.stream(), 0)(x)
        assert x[0] == 4
        assert kernel.py_func is one
        assert kernel.__name__ == "one"


@pytest.mark.parametrize("inline", [True, False, "always", "never"])
def test_a_device_function_is_inlined_by_a_bool_or_by_a_word(cuda, inline):
    @cuda.jit(device=True, inline=inline)
    def put(array, at, value):
        array[at] = value

    @cuda.jit
    def kernel(x):
        put(x, cuda.grid(1), cuda.blockDim.x)

    x = np.zeros(4)
    kernel[1, 4](x)
    assert (x == 4).all()


def test_options_that_mean_something_are_refused(cuda):
    for option in ("link", "boundscheck"):
        with pytest.raises(NotImplementedError, match=option):
            cuda.jit(**{option: ["x"]})
    with pytest.raises(KeyError, match="fastmaths"):
        cuda.jit(fastmaths=True)
    with pytest.raises(NotImplementedError, match=r"cuda.declare_device is not in normlab run"):
        cuda.declare_device("f", "int32(int32)")
    with pytest.raises(TypeError, match="not a int"):
        cuda.jit(3)
    with pytest.raises(TypeError, match="must have void return type"):
        cuda.jit("int32(int32)")(lambda x: None)
    with pytest.raises(TypeError, match=r"'<lambda>' has 2 arguments \(int32, int32\), the function 1"):
        cuda.jit("void(int32, int32)")(lambda x: None)


def test_host_arrays_travel_there_and_back(cuda):
    @cuda.jit
    def add(x, y):
        y[0] = x[0] + y[0]
        x[0] = 100

    x, y = np.ones(1), np.ones(1)
    add[1, 1](x, y)
    assert (x[0], y[0]) == (100, 2)
    x[0] = 1
    add[1, 1](cuda.In(x), cuda.InOut(y))
    assert (x[0], y[0]) == (1, 3)
    add[1, 1](x, cuda.Out(y))  # the kernel finds no 3 there
    assert np.isnan(y[0])
    both = np.ones(1)
    add[1, 1](both, both)  # two copies there, and the last to come back stays
    assert both[0] == 2


def test_a_kernel_never_sees_host_memory(cuda):
    host = np.zeros(1)

    @cuda.jit
    def compare(x, out):
        x[0] = 5
        out[0] = host[0]  # a global array is a constant of the kernel, and none of its arguments

    out = np.ones(1)
    compare[1, 1](host, out)
    assert (host[0], out[0]) == (5, 0)


def test_read_only_and_strided_host_arrays(cuda):
    @cuda.jit
    def read(x, out):
        out[0] = x[1]

    @cuda.jit
    def write(x):
        x[0] = 1

    x, out = np.arange(3.0), np.zeros(1)
    x.flags.writeable = False
    read[1, 1](x, out)
    assert out[0] == 1
    with pytest.raises(CompilerError, match="the array is read-only"):
        write[1, 1](x)
    with pytest.raises(ValueError, match="non-contiguous buffer"):
        write[1, 1](np.zeros(6)[::2])
    fortran = np.zeros((2, 3), order="F")
    write[1, 1](fortran)
    assert fortran[0].tolist() == [1, 1, 1]


def test_arguments_that_no_kernel_takes_are_named(cuda):
    @cuda.jit
    def kernel(x, y):
        x[0] = y

    for argument, kind in (("text", "str"), ([1], "list"), (None, "NoneType"), ({}, "dict")):
        with pytest.raises(TypeError, match=f"argument 2 of kernel 'kernel' is a {kind}; kernels take"):
            kernel[1, 1](np.zeros(1), argument)
    with pytest.raises(TypeError, match=r"takes 2 arguments \(x, y\), got 1"):
        kernel[1, 1](np.zeros(1))
    with pytest.raises(ValueError, match="launch configuration was not specified"):
        kernel(np.zeros(1), 1)
    with pytest.raises(ValueError, match="at least the griddim and blockdim"):
        kernel[1]
    with pytest.raises(ValueError, match="at most 1024"):
        kernel[1, 1025]
    with pytest.raises(RuntimeError, match="device function"):
        cuda.jit(device=True)(lambda x: x)[1, 1](np.zeros(1))


def test_tuples_and_scalars(cuda):
    @cuda.jit
    def spread(arrays, numbers, out):
        out[0] = arrays[0][0] + arrays[1][0] * numbers[1]
        arrays[0][0] = numbers[0]

    x, y, out = np.ones(1), cuda.to_device(np.full(1, 3.0)), np.zeros(1)
    spread[1, 1]((x, y), (np.float32(0.5), 2), out)
    assert (out[0], x[0]) == (7, 0.5)


def test_a_declared_scalar_takes_its_type(cuda):
    @cuda.jit("void(float64[:], uint8, float32, boolean, complex64)")
    def values(out, n, f, b, c):
        out[0], out[1], out[2], out[3] = n, f, b, c.imag

    out = np.zeros(4)
    values[1, 1](out, -1, 1 / 3, 7, 0.1j)
    assert out.tolist() == [255, np.float32(1 / 3), 1, np.float32(0.1)]
    with pytest.raises(TypeError, match=r"declares an argument as uint8, and was given the float64 2\.5"):
        values[1, 1](out, 2.5, 0, 0, 0)


def test_a_declared_array_has_to_be_one(cuda):
    @cuda.jit("void(float32[:, ::1])")
    def kernel(x):
        x[0, 0] = 1

    good = np.zeros((2, 2), np.float32)
    kernel[1, 1](good)
    for bad in (good.astype(float), good[0], np.asfortranarray(good), 1.0):
        with pytest.raises(TypeError, match="No matching definition for argument type"):
            kernel[1, 1](bad)


def test_the_best_of_many_signatures_is_taken(cuda):
    @cuda.jit([void(float64[:], int32), void(float64[:], float32), void(float64[:], float64)])
    def kernel(out, value):
        out[0] = value

    out = np.zeros(1)
    kernel[1, 1](out, 0.1)
    assert out[0] == 0.1
    kernel[1, 1](out, np.float32(0.1))
    assert out[0] == np.float32(0.1)
    kernel[1, 1](out, 2**24 + 1)  # an int64 fits float64 safely, int32 and float32 not
    assert out[0] == 2**24 + 1


def test_two_safe_conversions_are_better_than_one_that_is_not(cuda):
    @cuda.jit([void(float64[:], int32, int32), void(float64[:], float64, float64)])
    def kernel(out, x, y):
        out[0] = x + y

    out = np.zeros(1)
    kernel[1, 1](out, np.int32(1), 2**31)
    assert out[0] == 2**31 + 1


def test_a_device_function_converts_as_declared(cuda):
    @cuda.jit("int32(int32, float32[:])", device=True)
    def first(i, x):
        return x[0] + i

    @cuda.jit
    def kernel(x, out):
        out[0] = first(2.9, x)

    out = np.zeros(1)
    kernel[1, 1](np.full(1, 1.75, np.float32), out)
    assert out[0] == 3  # 1.75 + int32(2.9), as an int32


@pytest.mark.parametrize("signatures", ["float32(int32, float32)", ["float32(int32, float32)", "int8(int8, int8)"]])
def test_a_device_function_with_a_signature_takes_keywords(cuda, signatures):
    @cuda.jit(signatures, device=True)
    def difference(a, b):
        return a - b

    @cuda.jit
    def kernel(x, out):
        out[0] = difference(b=x[0], a=2.9)
        out[1] = difference(5, b=x[0])

    out = np.zeros(2)
    kernel[1, 1](np.full(1, 0.5, np.float32), out)
    assert list(out) == [1.5, 4.5]


def test_a_device_function_of_many_signatures_converts_as_the_best_one_declares(cuda):
    @cuda.jit([int32(int32, int32), float64(float64, float64)], device=True)
    def added(x, y):
        return x + y

    @cuda.jit([float64(float32[:], float64), float64(float64[:], int32)], device=True)
    def added_to_first(x, y):
        return x[0] + y

    @cuda.jit([float64(int64), int8(boolean)], device=True)
    def halved(x):
        return x / 2

    @cuda.jit
    def kernel(i, f, b, out):
        out[0] = added(i[0], i[0])
        out[1] = added(f[0], i[0])
        out[2] = added(i[0], np.int64(2))  # an int64 fits float64 safely, int32 not
        out[3] = added_to_first(f, 2.75)
        out[4] = halved(b[0])

    i, f, b, out = np.full(1, 2**31 - 1, np.int32), np.full(1, 0.5), np.ones(1, bool), np.zeros(5)
    kernel[1, 1](i, f, b, out)
    assert list(out) == [-2, 2**31 - 0.5, 2**31 + 1, 2.5, 0]


def test_forall(cuda):
    @cuda.jit
    def count(x, blocks):
        if cuda.grid(1) < x.size:
            x[cuda.grid(1)] += 1
        if cuda.threadIdx.x == 0:
            cuda.atomic.add(blocks, 0, 1)

    x, blocks = np.zeros(100), np.zeros(1, np.int32)
    count.forall(100)(x, blocks)
    count.forall(100, tpb=32, stream=cuda.stream())(x, blocks)
    count.forall(0)(x, blocks)
    assert (x == 2).all()
    assert blocks[0] == 1 + 4
    with pytest.raises(ValueError, match="negative task count: -1"):
        count.forall(-1)


def test_overloads_and_specialisations(cuda):
    @cuda.jit
    def kernel(x, y):
        x[0] = y

    x = np.zeros(1, np.float32)
    kernel[1, 1](x, 1)
    assert kernel.signatures == [(float32[::1], int64)]
    special = kernel.specialize(x, np.int32(1))
    special[1, 1](x, 2**32 + 3)
    assert x[0] == 3
    assert list(special.overloads) == [(float32[::1], int32)]
    with pytest.raises(RuntimeError, match="already specialized"):
        special.specialize(x, 1)
    overload = kernel.compile("void(float64[:], float64)")
    assert kernel.overloads[float64[:], float64] is overload
    resident = {32: 32, 64: 32, 96: 21, 128: 16, 1024: 2}  # blocks of so many threads on one of 132 multiprocessors
    assert {n: overload.max_cooperative_grid_blocks(n) // 132 for n in resident} == resident
    assert overload.max_cooperative_grid_blocks((8, 4), 100 * 1024) == 2 * 132


def test_what_only_a_compiler_knows_is_refused_by_name(cuda):
    kernel = cuda.jit(lambda x: None)
    for name in ("inspect_asm", "inspect_llvm", "inspect_sass", "get_regs_per_thread"):
        with pytest.raises(NotImplementedError, match=f"{name}: normlab run interprets"):
            getattr(kernel, name)()
    with pytest.raises(AttributeError, match="no attribute 'lunch'"):
        kernel.lunch()


def test_a_kernel_binds_as_numba_s_does(cuda):
    class Holder:
        plain = cuda.jit(lambda self: None)
        static = staticmethod(cuda.jit(lambda x: None))

    assert Holder.plain[1, 1] is not None
    assert Holder().static[1, 1] is not None
    with pytest.raises(TypeError, match="not subscriptable"):
        Holder().plain[1, 1]


def nothing(x):
    """Decorated below, so that pickle finds the kernel under this name."""


def test_a_kernel_is_pickled_by_name(cuda, monkeypatch):
    kernel = cuda.jit(nothing)
    monkeypatch.setitem(globals(), "nothing", kernel)
    monkeypatch.setitem(__import__("sys").modules, __name__, type("Module", (), globals()))
    assert pickle.loads(pickle.dumps(kernel)) is kernel


def test_numba_is_itself_again_afterwards(cuda):
    from numba.cuda import jit

    from normlab.run.launcher import Launcher
    from normlab.run.stand_in import stand_in

    with stand_in(Launcher()):
        assert cuda.jit is not jit
        assert cuda.is_available()
    assert cuda.jit is jit


def test_extensions_prepare_the_arguments_from_the_last_to_the_first(cuda):
    class Celsius:
        def __init__(self, array):
            self.array = array

    told = []

    class Unpacked:
        def prepare_args(self, ty, val, stream, retr):
            if not isinstance(val, Celsius):
                return ty, val
            retr.append(lambda: told.append("back"))
            return ty, val.array

    class Doubled:
        def prepare_args(self, ty, val, stream, retr):
            return ty, val * 2 if isinstance(val, int) else val

    @cuda.jit(extensions=[Unpacked()])
    def warm(x, by):
        x[cuda.grid(1)] += by

    warm.extensions.append(Doubled())
    host = np.zeros(3)
    warm[1, 3](Celsius(host), 5)
    assert host.tolist() == [10, 10, 10]
    assert told == ["back"]


def test_a_refused_kernel_raises_numba_s_kind_of_error_too(cuda):
    @cuda.jit
    def wrong(x):
        x[0] = undefined_name  # noqa: F821

    for kind in (numba.core.errors.TypingError, CompilerError):
        with pytest.raises(kind, match=r"^kernel 'wrong' does not compile for a GPU: the name undefined_name") as told:
            wrong[1, 1](np.zeros(1))
        assert "NameError: name 'undefined_name' is not defined" in str(told.value)  # Numba's own words


def test_a_kernel_is_specialised_once_for_values_or_types(cuda):
    @cuda.jit
    def fill(x):
        x[0] = 1

    made = fill.specialize(numba.float32[::1])
    assert fill.specialize(np.zeros(2, np.float32)) is made
    assert fill.specialize(numba.int32[::1]) is not made
    assert len(fill.specializations) == 2
    with pytest.raises(RuntimeError, match="already specialized"):
        made.specialize(numba.float32[::1])


def test_a_c_pointer_takes_an_address(cuda):
    @cuda.jit(numba.void(numba.types.CPointer(numba.uint8), numba.uint32))
    def add_one(x, n):
        i = cuda.grid(1)
        if i < n:
            x[i] += 1

    device = cuda.to_device(np.arange(10, dtype=np.uint8))
    add_one[1, 32](device[4:].__cuda_array_interface__["data"][0], 3)
    assert device.copy_to_host().tolist() == [0, 1, 2, 3, 5, 6, 7, 7, 8, 9]

    support = pytest.importorskip("numba.cuda.np.numpy_support", reason="this numba.cuda makes no array of a pointer")
    carray, farray = support.carray, support.farray

    @cuda.jit(numba.void(numba.types.CPointer(numba.uint8)))
    def edges(x):
        carray(x, (2, 4))[0, 3] = farray(x, (2, 4))[1, 2]

    edges[1, 1](device.__cuda_array_interface__["data"][0])
    assert device.copy_to_host().tolist() == [0, 1, 2, 6, 5, 6, 7, 7, 8, 9]


def test_named_tuples_keep_their_names_under_the_check(cuda):
    point = namedtuple("point", "x y")

    @cuda.jit
    def write(out, p):
        out[0], out[1] = p.x, p.y

    for given in (point(1, 2), point(1, 2.0)):
        out = np.zeros(2)
        write[1, 1](out, given)
        assert out.tolist() == [1, 2]
