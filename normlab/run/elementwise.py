"""`numba.vectorize` and `numba.guvectorize` with `target="cuda"`: one thread for each element or row.

Numba's builders look up "cuda" in a registry; `stand_in` puts `Vectorize` and `GUVectorize` there. Both broadcast on
the host, then launch one kernel, in which every thread calls the function for its own part.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from normlab.run.kernel import Kernel
from normlab.run.memory import DeviceArray, device_array
from normlab.run.numba_host import as_dtype, cuda
from normlab.run.signatures import is_array, signature_of


class Builder:
    """What both have in common: declared signatures, each with its kernel; and what they need not know."""

    def __init__(self, function: Any, targetoptions: dict[str, Any] | None, cache: bool):
        """Build for `function`; raises TypeError or KeyError for what the cuda target does not know."""
        if cache:
            raise TypeError("caching is not supported")
        if unknown := (targetoptions or {}).keys() - {"nopython", "is_dynamic"}:
            raise KeyError(f"Unrecognized options. cuda vectorize target does not support option: {sorted(unknown)}")
        self.py_func = self.pyfunc = function

    def kernel(self, caller: Any) -> Kernel:
        """Return the kernel whose threads run `caller`, in the name of the function that it calls."""
        caller.__name__ = self.py_func.__name__
        made = cuda.jit(caller)
        made.source = self.py_func
        return made

    def disable_compile(self) -> None:
        """Do nothing: signatures are added before."""


SCALARS = (int, float, complex, np.number)


def array_in(argument: Any) -> Any:
    """Return a device array as it is, everything else as a NumPy array."""
    return argument if isinstance(argument, DeviceArray) else np.asarray(argument)


def on_device(array: Any, dtype: np.dtype) -> np.ndarray:
    """Return an argument as memory of `dtype`."""
    memory = array.memory if isinstance(array, DeviceArray) else array.copy()
    return memory if memory.dtype == dtype else memory.astype(dtype)


def result(out: Any, shape: tuple[int, ...], dtype: np.dtype) -> DeviceArray:
    """Return the device array to compute into: `out` if it is one of the right shape, else a new one.

    Raises ValueError or TypeError for an `out` that does not fit.
    """
    if out is not None and out.shape != shape:
        raise ValueError(f"output shape mismatch: out has {out.shape}, the result {shape}")
    if out is not None and out.dtype != dtype:
        raise TypeError(f"out has dtype {out.dtype}, the result {dtype}")
    return out if isinstance(out, DeviceArray) else device_array(shape, dtype)


def returned(made: DeviceArray, out: Any, any_device: bool) -> Any:
    """Return a result where the caller expects it: in `out`, or where the arguments are."""
    if out is None:
        return made if any_device else made.copy_to_host()
    if not isinstance(out, DeviceArray):
        out[...] = made.memory
    return out


# --- vectorize -------------------------------------------------------------------------------------------------------


class Vectorize(Builder):
    """Builds a `Ufunc`."""

    def __init__(self, func: Any, identity: Any = None, cache: bool = False, targetoptions: Any = None):
        """Build for `func`."""
        super().__init__(func, targetoptions, cache)
        self.kernels: dict[tuple[np.dtype, ...], tuple[np.dtype, Kernel]] = {}

    def add(self, sig: Any) -> None:
        """Add a signature, such as `float32(float32, float32)`; raises TypeError without a result type."""
        arguments, declared = signature_of(sig)
        if declared is None:
            raise TypeError(f"vectorize on normlab run needs a result type, as in 'float32(float32)'; got {sig!r}")
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
        return Ufunc(self.py_func, self.kernels)


class Ufunc:
    """A function of arrays that broadcasts and runs on the simulated GPU."""

    def __init__(self, function: Any, kernels: dict[tuple[np.dtype, ...], tuple[np.dtype, Kernel]]):
        """Compute `function` with these kernels."""
        functools.update_wrapper(self, function)
        self._kernels = kernels

    def __call__(self, *arguments: Any, out: Any = None, stream: Any = 0) -> Any:
        """Compute elementwise; on the device if one of the arguments (or `out`) is there."""
        arrays = [array_in([each] if isinstance(each, SCALARS) else each) for each in arguments]
        dtypes = self._resolved(arguments, arrays)
        made_dtype, kernel = self._kernels[dtypes]
        shape = np.broadcast_shapes(*[array.shape for array in arrays])
        made = result(out, shape, made_dtype)
        flat = made.memory.reshape(-1)
        memories = [on_device(array, dtype) for array, dtype in zip(arrays, dtypes, strict=True)]
        elements = tuple(DeviceArray(np.broadcast_to(memory, shape).reshape(-1)) for memory in memories)
        kernel.forall(flat.size, stream=stream)(DeviceArray(flat), elements)
        if not np.may_share_memory(flat, made.memory):
            made.memory[...] = flat.reshape(made.shape)
        return returned(made, out, any(isinstance(array, DeviceArray) for array in arrays))

    def _resolved(self, arguments: Sequence[Any], arrays: list[Any]) -> tuple[np.dtype, ...]:
        """Return the declared dtypes that fit: arrays exactly; a scalar fits any, if that leaves no choice."""
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
        """Combine all elements of a one-dimensional array, halves with each other, as Numba does."""
        if arg.ndim != 1:
            raise TypeError(f"reduce takes a one-dimensional array, not one of shape {arg.shape}")
        if not arg.size:
            raise TypeError("Reduction on an empty array.")
        memory = DeviceArray(arg.memory.copy() if isinstance(arg, DeviceArray) else np.array(arg))
        return self._reduced(memory, stream)[0]

    def _reduced(self, array: DeviceArray, stream: Any) -> DeviceArray:
        if array.size == 1:
            return array
        if array.size % 2:
            return self(self._reduced(array[:-1], stream), array[-1:], stream=stream)
        half = array.size // 2
        return self._reduced(self(array[:half], array[half:], stream=stream), stream)


# --- guvectorize -----------------------------------------------------------------------------------------------------


class GUVectorize(Builder):
    """Builds a `GeneralizedUfunc`."""

    def __init__(
        self,
        func: Any,
        sig: str,
        identity: Any = None,
        cache: bool = False,
        targetoptions: Any = None,
        writable_args: Sequence[int] = (),
    ):
        """Build for `func`, whose core dimensions are `sig`, such as `(m,n),(n)->(m)`."""
        super().__init__(func, targetoptions, cache)
        if writable_args:
            raise TypeError("writable_args are not supported")
        self.inputs, self.outputs = core_dimensions(sig)
        self.kernels: dict[tuple[np.dtype, ...], tuple[tuple[np.dtype, ...], Kernel]] = {}

    def add(self, sig: Any) -> None:
        """Add a signature, such as `void(float32[:,:], float32[:], float32[:])`."""
        arguments, declared = signature_of(sig)
        if str(declared) not in ("None", "none"):
            raise TypeError(f"guvectorized functions cannot return values: signature {sig} specifies {declared}")
        if len(arguments) != len(self.inputs) + len(self.outputs):
            raise TypeError(f"the signature {sig} has not as many arguments as the layout has inputs and outputs")
        core = cuda.jit(device=True)(self.py_func)
        # What has no core dimensions, and yet is declared an array (an output has to be), is an array of one element.
        single = tuple(
            is_array(kind) and not names for kind, names in zip(arguments, (*self.inputs, *self.outputs), strict=True)
        )

        def rowwise(count, operands):
            index = cuda.grid(1)
            if index < count:
                core(
                    *[
                        operand[index : index + 1] if one else operand[index]
                        for operand, one in zip(operands, single, strict=True)
                    ]
                )

        dtypes = [np.dtype(as_dtype(kind.dtype if is_array(kind) else kind)) for kind in arguments]
        split = len(self.inputs)
        self.kernels[tuple(dtypes[:split])] = tuple(dtypes[split:]), self.kernel(rowwise)

    def build_ufunc(self) -> "GeneralizedUfunc":
        """Return the function."""
        return GeneralizedUfunc(self)


def core_dimensions(layout: str) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Return the names of every input's and every output's core dimensions; raises ValueError for a bad layout.

    >>> core_dimensions("(m, n), (n) -> (m)")
    ([('m', 'n'), ('n',)], [('m',)])
    """
    sides = "".join(layout.split()).split("->")
    if len(sides) != 2 or not all(side.startswith("(") and side.endswith(")") for side in sides):
        raise ValueError(f"a layout looks like '(m,n),(n)->(m)', not like {layout!r}")
    inputs, outputs = (
        [tuple(name for name in part.split(",") if name) for part in side[1:-1].split("),(")] for side in sides
    )
    if unknown := {name for names in outputs for name in names} - {name for names in inputs for name in names}:
        raise NameError(f"undefined output symbols: {', '.join(sorted(unknown))}")
    return inputs, outputs


class GeneralizedUfunc:
    """A function of rows (or matrices, …) that broadcasts over the other dimensions and runs on the simulated GPU."""

    def __init__(self, builder: GUVectorize):
        """Compute what `builder` was given."""
        functools.update_wrapper(self, builder.py_func)
        self._kernels, self._inputs, self._outputs = builder.kernels, builder.inputs, builder.outputs

    def __call__(self, *arguments: Any, out: Any = None, stream: Any = 0) -> Any:
        """Compute; outputs may follow the inputs. On the device if one of the arguments is there."""
        count = len(self._inputs)
        if len(arguments) not in (count, count + len(self._outputs)):
            raise TypeError(
                f"This gufunc accepts {count} positional arguments (when providing input only) or "
                f"{count + len(self._outputs)} (when providing input and output). Got {len(arguments)}."
            )
        outs = arguments[count:] or (out if isinstance(out, tuple) else (out,) * len(self._outputs))
        arrays = list(map(array_in, arguments[:count]))
        dtypes = self._resolved(arrays)
        out_dtypes, kernel = self._kernels[dtypes]
        loop, sizes = self._loop(arrays)
        rows = math.prod(loop)
        operands = []
        for array, names, dtype in zip(arrays, self._inputs, dtypes, strict=True):
            core = tuple(sizes[name] for name in names)
            operands.append(DeviceArray(np.broadcast_to(on_device(array, dtype), loop + core).reshape(rows, *core)))
        made = []
        for given, names, dtype in zip(outs, self._outputs, out_dtypes, strict=True):
            core = tuple(sizes[name] for name in names)
            made.append(result(given, loop + core, dtype))
            operands.append(made[-1].reshape(rows, *core))
        kernel.forall(rows, stream=stream)(rows, tuple(operands))
        any_device = any(isinstance(array, DeviceArray) for array in (*arrays, *outs))
        results = [returned(array, given, any_device) for array, given in zip(made, outs, strict=True)]
        return results[0] if len(results) == 1 else tuple(results)

    def _resolved(self, arrays: list[Any]) -> tuple[np.dtype, ...]:
        """Return the declared dtypes: the same, else the first that can be cast to what is given, as Numba looks."""
        given = tuple(array.dtype for array in arrays)
        for declared in self._kernels:
            if declared == given:
                return declared
        for declared in self._kernels:
            if all(map(np.can_cast, declared, given)):
                if any(isinstance(a, DeviceArray) and a.dtype != d for a, d in zip(arrays, declared, strict=True)):
                    raise TypeError("compatible signature is possible by casting but a device array cannot be cast")
                return declared
        raise TypeError(f"no matching signature for {', '.join(map(str, given))}")

    def _loop(self, arrays: list[Any]) -> tuple[tuple[int, ...], dict[str, int]]:
        """Return the shape that the inputs broadcast to beside their core dimensions, and the sizes of those."""
        sizes: dict[str, int] = {}
        loops = []
        for number, (array, names) in enumerate(zip(arrays, self._inputs, strict=True), start=1):
            split = array.ndim - len(names)
            if split < 0:
                raise ValueError(f"arg #{number}: insufficient inner dimension")
            for axis, name in enumerate(names):
                size = array.shape[split + axis]
                if sizes.setdefault(name, size) != size:
                    raise ValueError(f"arg #{number}: shape[{split + axis}] mismatch argument")
            loops.append(array.shape[:split])
        return np.broadcast_shapes(*loops), sizes
