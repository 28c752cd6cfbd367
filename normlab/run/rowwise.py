"""Replace `numba.guvectorize` with `target="cuda"`: one thread per row, per matrix, or per core array of the layout.

The host broadcasts the other dimensions, as in `elementwise.py`, then launches one kernel.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from normlab.run.elementwise import Builder, array_in, array_out, on_device, result, returned
from normlab.run.kernel import Kernel
from normlab.run.memory import DeviceArray
from normlab.run.numba_host import as_dtype, cuda
from normlab.run.record import plural
from normlab.run.signatures import is_array, signature_of


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
        """Build for `func`, whose core dimensions are `sig`, such as `(m,n),(n)->(m)`.

        Raise TypeError for the options that Numba does not have.
        """
        options = dict(targetoptions or {})
        if not options.pop("nopython", True):
            raise TypeError("nopython flag must be True")
        if unknown := options.keys() - {"is_dynamic"}:
            raise TypeError(f"The following target options are not supported: {', '.join(map(repr, sorted(unknown)))}")
        super().__init__(func, targetoptions, cache)
        if writable_args:
            raise TypeError("writable_args are not supported")
        self.inputs, self.outputs = core_dimensions(sig)
        self.kernels: dict[tuple[np.dtype, ...], tuple[tuple[np.dtype, ...], Kernel]] = {}

    def add(self, sig: Any) -> None:
        """Add a signature, such as `void(float32[:,:], float32[:], float32[:])`."""
        arguments, declared = signature_of(sig)
        if str(declared) not in ("None", "none"):
            raise TypeError(
                f"guvectorized functions cannot return values: signature {sig} specifies {declared} return type"
            )
        if len(arguments) != len(self.inputs) + len(self.outputs):
            raise TypeError(f"the signature {sig} has not as many arguments as the layout has inputs and outputs")
        core = cuda.jit(device=True)(self.py_func)
        # An operand without core dimensions may be declared as an array; an output must be. It has then one element.
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
        """Return the function of arrays."""
        return GeneralizedUfunc(self)


def core_dimensions(layout: str) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Return the names of every input's and every output's core dimensions.

    Raise ValueError for a malformed layout, and NameError for an output dimension that no input has.

    >>> core_dimensions("(m, n), (n) -> (m)")
    ([('m', 'n'), ('n',)], [('m',)])
    """
    sides = "".join(layout.split()).split("->")
    if len(sides) != 2 or not all(side.startswith("(") and side.endswith(")") for side in sides):
        raise ValueError(f"a layout looks like '(m,n),(n)->(m)', not like {layout!r}")
    inputs, outputs = (
        [tuple(name for name in part.split(",") if name) for part in side[1:-1].split("),(")] for side in sides
    )
    if odd := [name for names in (*inputs, *outputs) for name in names if not name.isidentifier()]:
        raise ValueError(f"a layout looks like '(m,n),(n)->(m)', but {layout!r} names a dimension {odd[0]!r}")
    if unknown := {name for names in outputs for name in names} - {name for names in inputs for name in names}:
        raise NameError(f"undefined output symbols: {', '.join(sorted(unknown))}")
    return inputs, outputs


class GeneralizedUfunc:
    """A function of rows (or matrices, …) that runs on the simulated GPU and broadcasts over the other dimensions."""

    def __init__(self, builder: GUVectorize):
        """Compute the function that `builder` was given."""
        functools.update_wrapper(self, builder.py_func)
        self._kernels, self._inputs, self._outputs = builder.kernels, builder.inputs, builder.outputs

    def __call__(self, *arguments: Any, out: Any = None, stream: Any = 0) -> Any:
        """Compute into the arrays after the inputs, or new ones; on the device if one of the arguments is there."""
        count = len(self._inputs)
        if len(arguments) not in (count, count + len(self._outputs)):
            raise TypeError(
                f"This gufunc accepts {count} positional arguments (when providing input only) or "
                f"{count + len(self._outputs)} positional arguments (when providing input and output). Got "
                f"{plural(len(arguments), 'positional argument', 'positional arguments')}."
            )
        if out is not None and len(arguments) > count:
            raise ValueError("cannot specify argument 'out' as both positional and keyword")
        outs = arguments[count:] or (out if isinstance(out, tuple) else (out,) * len(self._outputs))
        if len(outs) != len(self._outputs):
            had, needed = (plural(len(one), "array", "arrays") for one in (outs, self._outputs))
            raise ValueError(f"out has {had}, but the layout has {needed} of results")
        outs = tuple(map(array_out, outs))
        arrays = list(map(array_in, arguments[:count]))
        dtypes = self._resolved(arrays)
        out_dtypes, kernel = self._kernels[dtypes]
        loop, sizes = self._loop(arrays)
        rows = math.prod(loop)
        operands = []
        for array, names, dtype in zip(arrays, self._inputs, dtypes, strict=True):
            core = tuple(sizes[name] for name in names)
            memory = on_device(array, dtype)
            if memory.shape != loop + core:  # else it stays writable: NumPy broadcasts to read-only views
                memory = np.broadcast_to(memory, loop + core)
            operands.append(DeviceArray.of(memory.reshape(rows, *core)))
        made = []
        for given, names, dtype in zip(outs, self._outputs, out_dtypes, strict=True):
            core = tuple(sizes[name] for name in names)
            if given is not None and given.size == math.prod(loop + core):  # as Numba does, whatever the axes
                made.append(result(given.reshape(loop + core), loop + core, dtype))
            else:
                made.append(result(given, loop + core, dtype))
            operands.append(made[-1].reshape(rows, *core))
        kernel.forall(rows, stream=stream)(rows, tuple(operands))
        any_device = any(isinstance(array, DeviceArray) for array in (*arrays, *outs))
        results = [returned(array, given, any_device) for array, given in zip(made, outs, strict=True)]
        return results[0] if len(results) == 1 else tuple(results)

    def _resolved(self, arrays: list[Any]) -> tuple[np.dtype, ...]:
        """Return the declared dtypes that equal the given dtypes, else the first that can be cast to them."""
        given = tuple(array.dtype for array in arrays)
        for declared in self._kernels:
            if declared == given:
                return declared
        for declared in self._kernels:
            if all(map(np.can_cast, declared, given)):  # in this direction, as Numba's own search does
                if any(isinstance(a, DeviceArray) and a.dtype != d for a, d in zip(arrays, declared, strict=True)):
                    raise TypeError(
                        "compatible signature is possible by casting but a device array cannot be cast: it does not "
                        "support .astype()"
                    )
                return declared
        raise TypeError(f"no matching signature for {', '.join(map(str, given))}")

    def _loop(self, arrays: list[Any]) -> tuple[tuple[int, ...], dict[str, int]]:
        """Return the shape to which the inputs' outer dimensions broadcast, and the sizes of the core dimensions."""
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
