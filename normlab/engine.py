"""The engine room: the one place that imports a CUDA compiler, and the one that picks the GPU or the simulator.

Everything above names `cuda`, `launch` and the intrinsics `load`, `store` and `cast` from here. A kernel written so
runs unchanged in three worlds: compiled on a GPU, interpreted by `normlab.sim`, and compiled to PTX with no GPU at all.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from math import prod
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import cuda, float32, float64
from numba.cuda import dispatcher as _dispatcher
from numba.cuda.extending import intrinsic

from normlab.sim import read_vector, register_twin, simulate, write_vector

try:
    from numba.cuda import cgutils
    from numba.cuda import types as _types
    from numba.cuda.core.errors import TypingError
    from numba.cuda.np.numpy_support import from_dtype
except ImportError:  # numba's own, older numba.cuda: on macOS, where numba-cuda has no wheels
    from numba.core import cgutils
    from numba.core import types as _types
    from numba.core.errors import TypingError
    from numba.np.numpy_support import from_dtype

__all__ = [
    "DeviceArray",
    "accumulator",
    "cast",
    "compile_ptx",
    "cuda",
    "device_empty",
    "device_of",
    "float32",
    "float64",
    "gpu_available",
    "launch",
    "load",
    "load_vector",
    "numba_array",
    "store",
    "store_vector",
    "synchronize",
    "to_device",
    "to_host",
    "use_gpu",
    "using",
]

BFLOAT16 = getattr(_types, "bfloat16", None)  # which that one does not know
WORLDS = ("auto", "gpu", "simulator")
_world: ContextVar[str] = ContextVar("normlab_world", default="auto")
_schedule: ContextVar[str | int] = ContextVar("normlab_schedule", default="forward")


@cache
def gpu_available() -> bool:
    """Is there a CUDA driver with at least one GPU? Asked once a process."""
    return bool(cuda.is_available())


@contextmanager
def using(world: str, schedule: str | int = "forward") -> Iterator[None]:
    """Choose where host arrays are computed, for the length of a `with` block.

    Args:
        world: "gpu", "simulator", or "auto": the GPU if there is one, else the simulator.
        schedule: the order in which the simulator runs blocks, warps and lanes: "forward", "reverse" or a seed.

    Raises:
        ValueError: an unknown world.
        RuntimeError: "gpu" on a machine that has none.
    """
    if world not in WORLDS:
        raise ValueError(f"unknown engine {world!r}: choose one of {', '.join(WORLDS)}")
    if world == "gpu" and not gpu_available():
        raise RuntimeError("the engine 'gpu' needs an NVIDIA GPU and its driver; none was found here. Use 'simulator'.")
    tokens = _world.set(world), _schedule.set(schedule)
    try:
        yield
    finally:
        _world.reset(tokens[0])
        _schedule.reset(tokens[1])


def use_gpu() -> bool:
    """Will host arrays be computed on a GPU now?"""
    return _world.get() == "gpu" or (_world.get() == "auto" and gpu_available())


# ---- arrays on the device -------------------------------------------------------------------------------------------


class DeviceArray(NamedTuple):
    """A C-contiguous (or, with `strides`, any) array in GPU memory, whoever allocated it.

    `owner` keeps the memory alive. `dtype` is a NumPy dtype; bfloat16 is `ml_dtypes.bfloat16`.
    """

    pointer: int
    shape: tuple[int, ...]
    dtype: np.dtype
    device: int
    owner: Any
    strides: tuple[int, ...] | None = None  # bytes; None: C-contiguous


def device_empty(shape: tuple[int, ...], dtype: Any, device: int = 0) -> DeviceArray:
    """Uninitialised GPU memory for an array of this shape and dtype."""
    dtype = np.dtype(dtype)
    with cuda.gpus[device]:
        # bytes, because Numba's own arrays do not know every dtype; one at least, because no driver gives out none
        owner = cuda.device_array(max(1, prod(shape) * dtype.itemsize), np.uint8)
    return DeviceArray(owner.device_ctypes_pointer.value or 0, tuple(shape), dtype, device, owner)


def to_device(array: np.ndarray, device: int = 0) -> DeviceArray:
    """A copy of a host array in GPU memory."""
    view = device_empty(array.shape, array.dtype, device)
    if array.size:
        with cuda.gpus[device]:
            view.owner.copy_to_device(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return view


def to_host(view: DeviceArray) -> np.ndarray:
    """A copy of an array that `device_empty` or `to_device` made, in host memory."""
    size = prod(view.shape) * view.dtype.itemsize
    with cuda.gpus[view.device]:
        return view.owner.copy_to_host()[:size].view(view.dtype).reshape(view.shape)


def numba_array(view: DeviceArray, shape: tuple[int, ...]) -> Any:
    """An array that `device_empty` made as Numba's own device array, C-contiguous, of another shape."""
    size = prod(shape) * view.dtype.itemsize
    return view.owner[:size].view(view.dtype).reshape(shape)


def device_of(pointer: int) -> int:
    """The number of the GPU whose memory a pointer points into."""
    from cuda.bindings import driver

    if not pointer:  # of an array without elements
        return cuda.get_current_device().id
    attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    error, device = driver.cuPointerGetAttribute(attribute, pointer)
    if error != driver.CUresult.CUDA_SUCCESS:
        raise ValueError(f"the driver knows no device for the address {pointer:#x}: {error.name}")
    return int(device)


def synchronize(stream: int | None, *, unless: int) -> None:
    """Wait for the work queued on a stream, given by its handle, unless later work goes to that stream anyway."""
    if stream and stream != unless:
        cuda.external_stream(stream).synchronize()


def accumulator(statistics: Any) -> Any:
    """The Numba type that a kernel computes in: that of the statistics it writes, float64 for float64 input."""
    return float64 if statistics.dtype == np.float64 else float32


# ---- launching ------------------------------------------------------------------------------------------------------


def launch(kernel: Any, grid: int | tuple, block: int | tuple, *args: Any, stream: int = 0) -> None:
    """Run a kernel: on the GPU for `DeviceArray` arguments, else on whatever `use_gpu()` says, in place on NumPy
    arrays.

    Args:
        kernel: a function under `cuda.jit`.
        grid: blocks, an int or a tuple of up to three.
        block: threads a block, likewise.
        args: arrays (all on the device, or all on the host), NumPy or Python scalars, or None for an absent array.
            Python ints become int64 and Python floats float64, so pass `np.float32(eps)` to stay in single precision.
        stream: the handle of a CUDA stream; the work is only queued there when the arguments are on the device.
    """
    if any(isinstance(arg, DeviceArray) for arg in args):
        _launch_on_gpu(kernel, grid, block, args, stream)
    elif use_gpu():
        views = [to_device(arg) if isinstance(arg, np.ndarray) else arg for arg in args]
        _launch_on_gpu(kernel, grid, block, views, stream)
        for arg, view in zip(args, views, strict=True):
            if isinstance(arg, np.ndarray) and arg.flags.writeable:
                arg[...] = to_host(view)
    else:
        simulate(kernel, schedule=_schedule.get())[grid, block](*args)


def _launch_on_gpu(kernel: Any, grid: int | tuple, block: int | tuple, args: Any, stream: int) -> None:
    from cuda.bindings import driver

    devices = {arg.device for arg in args if isinstance(arg, DeviceArray)} or {0}
    if len(devices) > 1:
        raise ValueError(f"the arrays of one launch lie on different GPUs: {sorted(devices)}")
    device = devices.pop()
    function = _compiled(kernel, tuple(map(_kind, args)), device)
    parameters = [parameter for arg in args for parameter in _parameters(arg)]
    addresses = (ctypes.c_void_p * len(parameters))(*map(ctypes.addressof, parameters))
    shared_bytes = 0
    with cuda.gpus[device]:
        (error,) = driver.cuLaunchKernel(
            function, *_dimensions(grid), *_dimensions(block), shared_bytes, stream, ctypes.addressof(addresses), 0
        )
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"the driver could not launch {kernel.py_func.__name__}[{grid}, {block}]: {error.name}")


@cache
def _compiled(kernel: Any, kinds: tuple, device: int) -> Any:
    """The driver's function for a kernel and the kinds of its arguments on one GPU; compiled once a process."""
    from cuda.bindings import driver

    with cuda.gpus[device]:
        compiled = kernel.compile(tuple(map(_numba_type, kinds)))
        return driver.CUfunction(int(compiled._codelibrary.get_cufunc().handle))


def _dimensions(size: int | tuple) -> tuple[int, int, int]:
    """A grid or block size as three ints."""
    sizes = size if isinstance(size, tuple) else (size,)
    if not 1 <= len(sizes) <= 3:
        raise ValueError(f"a grid or a block has one to three dimensions, got {size}")
    x, y, z = (*sizes, 1, 1)[:3]
    return int(x), int(y), int(z)


def _kind(arg: Any) -> Any:
    """What a kernel is compiled for: None, the dtype of a scalar, or (dtype, dimensions, layout) of an array."""
    if arg is None:
        return None
    if isinstance(arg, DeviceArray):
        return arg.dtype, len(arg.shape), "C" if arg.strides is None else "A"
    if isinstance(arg, (bool, int, float, np.generic)):
        return np.asarray(arg).dtype
    raise TypeError(
        "a launch takes arrays that are all on the host or all on the device, numbers and None, "
        f"but got {type(arg).__module__}.{type(arg).__qualname__}"
    )


def _numba_type(kind: Any) -> Any:
    """The Numba type of a kind."""
    if kind is None:
        return _types.none
    dtype, *array = kind if isinstance(kind, tuple) else (kind,)
    scalar = from_dtype(np.dtype(dtype))
    return _types.Array(scalar, *array) if array else scalar


def _parameters(arg: Any) -> Iterator[Any]:
    """One launch argument as the kernel parameters of Numba's calling convention.

    An array is: meminfo, parent, number of items, bytes an item, data, shape…, strides…; None is one null pointer.
    """
    if arg is None:
        yield ctypes.c_void_p(0)
    elif isinstance(arg, DeviceArray):
        yield ctypes.c_void_p(0)
        yield ctypes.c_void_p(0)
        yield ctypes.c_int64(prod(arg.shape))
        yield ctypes.c_int64(arg.dtype.itemsize)
        yield ctypes.c_void_p(arg.pointer)
        yield from map(ctypes.c_int64, arg.shape)
        yield from map(ctypes.c_int64, arg.strides or _contiguous_strides(arg))
    else:
        scalar = np.asarray(arg)
        yield (ctypes.c_uint8 * scalar.itemsize).from_buffer_copy(scalar.tobytes())


def _contiguous_strides(view: DeviceArray) -> tuple[int, ...]:
    steps = [view.dtype.itemsize]
    for size in reversed(view.shape[1:]):
        steps.insert(0, steps[0] * size)
    return tuple(steps[: len(view.shape)])


def compile_ptx(kernel: Any, types: tuple, cc: tuple[int, int] = (9, 0)) -> str:
    """A kernel's PTX for a compute capability, compiled with no GPU and no driver.

    Args:
        kernel: a function under `cuda.jit`.
        types: one entry an argument: None, a NumPy dtype for a scalar, or (dtype, ndim) for a C-contiguous array.
        cc: compute capability.
    """
    kinds = ((*entry, "C") if isinstance(entry, tuple) else entry for entry in types)
    signature = tuple(map(_numba_type, kinds))
    real = _dispatcher.get_current_device
    # Numba asks the GPU in the machine which architecture a device function is for; here there may be none.
    _dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=cc)
    try:
        return cuda.compile_ptx(kernel.py_func, signature, cc=cc)[0]
    finally:
        _dispatcher.get_current_device = real


# ---- intrinsics, each with its Python twin for the simulator --------------------------------------------------------


@intrinsic
def load(typing_context, array, index):
    """`array[index]` in accumulator precision (apex's T -> U): float64 stays, everything narrower becomes float32.

    `index` is an int or a tuple of ints, and never negative: Numba's own indexing asks at every access whether to
    count from the end, which costs an inner loop more than its arithmetic does.
    """
    wide = _types.float64 if array.dtype == _types.float64 else _types.float32

    def generate(context, builder, signature, args):
        value = context.unpack_value(builder, array.dtype, _element_pointer(context, builder, signature, args))
        return _widen(context, builder, value, array.dtype, wide)

    return wide(array, index), generate


@intrinsic
def store(typing_context, array, index, value):
    """`array[index] = value`, rounded to nearest even into the array's dtype (apex's U -> V). Index as in `load`."""

    def generate(context, builder, signature, args):
        pointer = _element_pointer(context, builder, signature, args)
        context.pack_value(builder, array.dtype, _convert(context, builder, args[2], value, array.dtype), pointer)
        return context.get_dummy_value()

    return _types.none(array, index, value), generate


@intrinsic
def load_vector(typing_context, array, index, width):
    """`width` neighbouring elements from `array[index]` on, in one instruction: a tuple in accumulator precision.

    `width` is a literal int; width times itemsize is 4, 8 or 16 bytes, to a multiple of which the address must be
    aligned: on a GPU a misaligned one is a fault. The elements lie next to each other along the last axis, which is
    contiguous. Index as in `load`.
    """
    if not isinstance(width, _types.IntegerLiteral):
        return None  # not for this intrinsic: Numba's error names the types that it was given
    count = width.literal_value
    _check_vector("load_vector", array, count)
    wide = _types.float64 if array.dtype == _types.float64 else _types.float32
    result = _types.UniTuple(wide, count)

    def generate(context, builder, signature, args):
        pointer, size = _vector_pointer(context, builder, signature, args, count)
        loaded = builder.load(pointer)
        loaded.align = size
        elements = [_vector_element(builder, loaded, position, array.dtype) for position in range(count)]
        values = [_widen(context, builder, element, array.dtype, wide) for element in elements]
        return context.make_tuple(builder, result, values)

    return result(array, index, width), generate


@intrinsic
def store_vector(typing_context, array, index, values):
    """`array[index], …` = the tuple `values`, rounded as in `store`, in one instruction; limits as in `load_vector`."""
    if not isinstance(values, _types.BaseTuple):
        return None
    count = len(values)
    _check_vector("store_vector", array, count)

    def generate(context, builder, signature, args):
        pointer, size = _vector_pointer(context, builder, signature, args, count)
        elements = [
            _convert(context, builder, value, kind, array.dtype)
            for value, kind in zip(cgutils.unpack_tuple(builder, args[2]), values, strict=True)
        ]
        stored = builder.store(_vector_of(builder, elements, pointer.type.pointee), pointer)
        stored.align = size
        return context.get_dummy_value()

    return _types.none(array, index, values), generate


@intrinsic
def cast(typing_context, value, array):
    """A value in the dtype of `array`: `cast(0, array)` and `cast(n, array)`, where a bare `0.0` would be a float64."""

    def generate(context, builder, signature, args):
        return _convert(context, builder, args[0], value, array.dtype)

    return array.dtype(value, array), generate


def _element_pointer(context, builder, signature, args):
    array, index = signature.args[:2]
    many = isinstance(index, _types.BaseTuple)
    values = cgutils.unpack_tuple(builder, args[1]) if many else [args[1]]
    indices = [
        context.cast(builder, value, kind, _types.intp)
        for value, kind in zip(values, index if many else [index], strict=True)
    ]
    data = context.make_array(array)(context, builder, args[0])
    return cgutils.get_item_pointer(context, builder, array, data, indices, wraparound=False)


def _vector_pointer(context, builder, signature, args, count):
    """The address of `count` elements as one vector, and their size in bytes.

    Two halves travel as one 32-bit word: of a vector of 16-bit elements the compiler would make two instructions.
    """
    dtype = signature.args[0].dtype
    size = count * dtype.bitwidth // 8
    half = dtype.bitwidth == 16
    part = ir.IntType(32) if half else context.get_data_type(dtype)
    vector = ir.VectorType(part, count // 2 if half else count)
    return builder.bitcast(_element_pointer(context, builder, signature, args), vector.as_pointer()), size


def _vector_element(builder, vector, position, dtype):
    if dtype.bitwidth != 16:
        return builder.extract_element(vector, ir.IntType(32)(position))
    word = builder.extract_element(vector, ir.IntType(32)(position // 2))
    return builder.trunc(builder.lshr(word, ir.IntType(32)(16 * (position % 2))), ir.IntType(16))


def _vector_of(builder, elements, vector_type):
    if vector_type.count < len(elements):
        words = [builder.zext(element, ir.IntType(32)) for element in elements]
        pairs = zip(words[::2], words[1::2], strict=True)
        elements = [builder.or_(low, builder.shl(high, ir.IntType(32)(16))) for low, high in pairs]
    vector = vector_type(ir.Undefined)
    for position, element in enumerate(elements):
        vector = builder.insert_element(vector, element, ir.IntType(32)(position))
    return vector


def _check_vector(name, array, count):
    size = count * array.dtype.bitwidth // 8
    if size not in (4, 8, 16):
        raise TypingError(f"{name} moves 4, 8 or 16 bytes at a time, but {count} x {array.dtype} are {size}")
    if array.layout != "C":
        raise TypingError(f"{name} needs a C-contiguous array, whose neighbours lie side by side, but got {array}")


def _widen(context, builder, value, source, wide):
    if source == BFLOAT16:  # the upper half of a float32
        bits = builder.shl(builder.zext(value, ir.IntType(32)), ir.IntType(32)(16))
        return builder.bitcast(bits, ir.FloatType())
    return context.cast(builder, value, source, wide)


def _convert(context, builder, value, source, target):
    if target != BFLOAT16:
        return context.cast(builder, value, source, target)
    single = context.cast(builder, value, source, _types.float32)
    function = ir.FunctionType(ir.IntType(16), [ir.FloatType()])
    return builder.call(ir.InlineAsm(function, "cvt.rn.bf16.f32 $0, $1;", "=h,f"), [single])


def _load(array: Any, index: Any) -> Any:
    value = array[index]
    return value if isinstance(value, np.float64) else np.float32(value)


def _store(array: Any, index: Any, value: Any) -> None:
    array[index] = value


def _load_vector(array: Any, index: Any, width: int) -> tuple:
    values = read_vector(array, index, width)
    return values if array.dtype == np.float64 else tuple(map(np.float32, values))


def _cast(value: Any, array: np.ndarray) -> Any:
    return array.dtype.type(value)


register_twin(load, _load)
register_twin(store, _store)
register_twin(load_vector, _load_vector)
register_twin(store_vector, write_vector)
register_twin(cast, _cast)
