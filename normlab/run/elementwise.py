"""Replace `numba.vectorize` with `target="cuda"`: one thread per element. `rowwise.py` shares parts of this file.

Numba's builders look up "cuda" in a registry; `stand_in` puts `Vectorize` there. It broadcasts on the host, then
launches one kernel, in which every thread calls the function for its own element.
"""

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from normlab.run.allocate import device_array
from normlab.run.interface import as_cuda_array, is_cuda_array
from normlab.run.kernel import Kernel
from normlab.run.memory import DeviceArray
from normlab.run.numba_host import as_dtype, cuda, pickled, result_type, unpickled
from normlab.run.signatures import signature_of


class Builder:
    """The common base of `Vectorize` and `GUVectorize`, which keep a kernel for each declared signature."""

    def __init__(self, function: Any, targetoptions: dict[str, Any] | None, cache: bool):
        """Build for `function`. Raise TypeError for `cache`, and KeyError for an unknown option."""
        if cache:
            raise TypeError("caching is not supported")
        if unknown := (targetoptions or {}).keys() - {"nopython", "is_dynamic"}:
            raise KeyError(f"Unrecognized options. cuda vectorize target does not support option: {sorted(unknown)}")
        self.py_func = self.pyfunc = function

    def kernel(self, caller: Any) -> Kernel:
        """Return the kernel whose threads run `caller`; the kernel has the name of the function that `caller` calls."""
        caller.__name__ = self.py_func.__name__
        made = cuda.jit(caller)
        made.source = self.py_func
        return made

    def disable_compile(self) -> None:
        """Do nothing: all signatures have been added by now."""


SCALARS = (int, float, complex, np.number)


def array_in(argument: Any) -> Any:
    """Return an array of a device as a device array, and any other argument as a NumPy array."""
    return as_cuda_array(argument) if is_cuda_array(argument) else np.asarray(argument)


def array_out(out: Any) -> Any:
    """Return an array to compute into: a device array, a host array, or None for a new one."""
    return as_cuda_array(out) if is_cuda_array(out) else out


def on_device(array: Any, dtype: np.dtype) -> np.ndarray:
    """Return an argument as memory of `dtype`."""
    memory = array.memory if isinstance(array, DeviceArray) else array.copy()
    return memory if memory.dtype == dtype else memory.astype(dtype)


def result(out: Any, shape: tuple[int, ...], dtype: np.dtype) -> DeviceArray:
    """Return the device array to compute into: `out` if it is a device array, else a new one.

    Raise ValueError or TypeError if `out` has the wrong shape or dtype.
    """
    if out is not None and out.shape != shape:
        raise ValueError(f"output shape mismatch: out has {out.shape}, the result {shape}")
    if out is not None and out.dtype != dtype:
        raise TypeError(f"out has dtype {out.dtype}, the result {dtype}")
    return out if isinstance(out, DeviceArray) else device_array(shape, dtype)


def returned(made: DeviceArray, out: Any, any_device: bool) -> Any:
    """Return a result in `out`, or, without an `out`, on the device if any argument was there, else on the host."""
    if out is None:
        return made if any_device else made.copy_to_host()
    if not isinstance(out, DeviceArray):
        out[...] = made.memory.reshape(out.shape)
    return out


class Vectorize(Builder):
    """Builds a `Ufunc`."""

    def __init__(self, func: Any, identity: Any = None, cache: bool = False, targetoptions: Any = None):
        """Build for `func`."""
        super().__init__(func, targetoptions, cache)
        if "nopython" in (targetoptions or {}):
            warnings.warn("nopython kwarg for cuda target is redundant", RuntimeWarning, stacklevel=2)
        self.kernels: dict[tuple[np.dtype, ...], tuple[np.dtype, Kernel]] = {}
        self.signatures: list[Any] = []

    def add(self, sig: Any) -> None:
        """Add a signature, such as `float32(float32, float32)`; without a result type, Numba infers it."""
        self.signatures.append(sig)
        arguments, declared = signature_of(sig)
        if declared is None:
            declared = result_type(self.py_func, arguments)
        core = cuda.jit(declared(*arguments), device=True)(self.py_func)

        def elementwise(made, inputs):
            index = cuda.grid(1)
            if index < made.shape[0]:
                made[index] = core(*[array[index] for array in inputs])

        kernel = self.kernel(elementwise)
        self.kernels[tuple(np.dtype(as_dtype(kind)) for kind in arguments)] = (
            np.dtype(as_dtype(declared)),
            kernel,
        )

    def build_ufunc(self) -> "Ufunc":
        """Return the function."""
        return Ufunc(self.py_func, self.kernels, self.signatures)


class Ufunc:
    """A function of arrays that broadcasts and runs on the simulated GPU."""

    def __init__(
        self, function: Any, kernels: dict[tuple[np.dtype, ...], tuple[np.dtype, Kernel]], signatures: list[Any]
    ):
        """Compute `function` with these kernels, made for `signatures`."""
        functools.update_wrapper(self, function)
        self._function, self._kernels, self._signatures = function, kernels, signatures

    def __reduce__(self) -> Any:
        """Pickle with the function's code, for other processes."""
        return _made_again, (pickled(self._function), self._signatures)

    def __call__(self, *arguments: Any, out: Any = None, stream: Any = 0) -> Any:
        """Compute elementwise; the result is on the device if one of the arguments (or `out`) is there."""
        arrays = [array_in([each] if isinstance(each, SCALARS) else each) for each in arguments]
        dtypes = self._resolved(arguments, arrays)
        made_dtype, kernel = self._kernels[dtypes]
        out = array_out(out)
        shape = np.broadcast_shapes(*[array.shape for array in arrays])
        made = result(out, shape, made_dtype)
        flat = made.memory.reshape(-1)
        memories = [on_device(array, dtype) for array, dtype in zip(arrays, dtypes, strict=True)]
        elements = tuple(DeviceArray.of(np.broadcast_to(memory, shape).reshape(-1)) for memory in memories)
        kernel.forall(flat.size, stream=stream)(DeviceArray.of(flat), elements)
        if not np.may_share_memory(flat, made.memory):
            made.memory[...] = flat.reshape(made.shape)
        return returned(made, out, any(isinstance(array, DeviceArray) for array in arrays))

    def _resolved(self, arguments: Sequence[Any], arrays: list[Any]) -> tuple[np.dtype, ...]:
        """Return the declared dtypes that fit. Arrays must match exactly; a scalar fits any dtype.

        Raise TypeError if no declared signature fits, or more than one.
        """
        scalar = [isinstance(argument, SCALARS) for argument in arguments]
        same_count = [dtypes for dtypes in self._kernels if len(dtypes) == len(arrays)]
        exact = [dtypes for dtypes in same_count if all(a.dtype == d for a, d in zip(arrays, dtypes, strict=True))]
        matches = exact or [
            dtypes
            for dtypes in same_count
            if all(free or array.dtype == dtype for free, array, dtype in zip(scalar, arrays, dtypes, strict=True))
        ]
        if not matches:
            raise TypeError(
                "No matching version.  GPU ufunc requires array arguments to have the exact types.  This behaves like "
                f"regular ufunc with casting='no'. Given: {', '.join(str(array.dtype) for array in arrays)}"
            )
        if len(matches) > 1:
            raise TypeError(
                "Failed to resolve ufunc due to ambiguous signature. Too many untyped scalars. "
                "Use numpy dtype object to type tag."
            )
        return matches[0]

    def reduce(self, arg: Any, stream: Any = 0) -> Any:
        """Reduce a one-dimensional array by combining its two halves again and again, as Numba does."""
        if arg.ndim != 1:
            raise TypeError(f"reduce takes a one-dimensional array, not one of shape {arg.shape}")
        if not arg.size:
            raise TypeError("Reduction on an empty array.")
        memory = DeviceArray.of(arg.memory.copy() if isinstance(arg, DeviceArray) else np.array(arg))
        return self._reduced(memory, stream)[0]

    def _reduced(self, array: DeviceArray, stream: Any) -> DeviceArray:
        if array.size == 1:
            return array
        if array.size % 2:
            return self(self._reduced(array[:-1], stream), array[-1:], stream=stream)
        half = array.size // 2
        return self._reduced(self(array[:half], array[half:], stream=stream), stream)


def _made_again(function: bytes, signatures: list[Any]) -> Ufunc:
    builder = Vectorize(unpickled(function))
    for signature in signatures:
        builder.add(signature)
    return builder.build_ufunc()
