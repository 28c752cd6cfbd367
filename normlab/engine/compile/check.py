"""Check a simulated launch with Numba: `simulate(…, check=True)` loads this file by its name.

The simulator runs any Python, and a GPU only what Numba compiles. The check infers the types of a kernel and of its
device functions for the types of a launch's arguments. A kernel is checked once for each combination of types.
"""

import inspect
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from normlab.engine.compile.compiler import TypingError, from_dtype, typeof, types
from normlab.engine.compile.front_end import Refusal, compiled
from normlab.engine.compile.variables import types_of
from normlab.sim import CompilerError
from normlab.sim.language.source import Line
from normlab.sim.language.variables import Types

OPTIONS = ("debug", "lineinfo", "fastmath")
OTHER_COMPILER = "numba_cuda_mlir"

_known: WeakKeyDictionary[FunctionType, dict[tuple, Refusal | Types]] = WeakKeyDictionary()


def check(kernel: Any, function: FunctionType, arguments: tuple, adopted: list) -> CompilerError | Types:
    """Return the types of a kernel's variables, or the error to raise if Numba refuses it for a launch's arguments.

    Args:
        kernel: what `simulate` was given: a kernel under `cuda.jit`, or `function` itself.
        function: the kernel's Python function.
        arguments: the launch's arguments.
        adopted: the same arguments as the simulated kernel sees them; tensors are arrays here.
    """
    if type(kernel).__module__.startswith(OTHER_COMPILER):
        return {}  # Numba does not know this compiler's functions
    if getattr(kernel, "specialized", False):
        return {}  # `cuda.jit` was given a signature, and compiled the kernel for it
    signature = tuple(map(type_of, arguments, adopted))
    options = getattr(kernel, "targetoptions", {})
    return check_types(function, signature, options)


def check_types(function: FunctionType, signature: tuple, options: dict[str, Any]) -> CompilerError | Types:
    """Return the types of a kernel's variables, or the error to raise if Numba refuses it for these arguments' types.

    `options`: those of `cuda.jit`.
    """
    chosen: dict[str, Any] = {name: bool(options.get(name)) for name in OPTIONS}
    try:
        inspect.signature(function).bind(*signature)
    except TypeError:  # the launch itself raises an error for a wrong number of arguments
        return {}
    known = _known.setdefault(function, {})
    key = signature, *chosen.values()
    if key not in known:
        result = compiled(function, signature, **chosen)
        known[key] = result if isinstance(result, Refusal) else types_of(result)
    told = known[key]
    return error_of(function, told) if isinstance(told, Refusal) else told


def error_of(function: FunctionType, refused: Refusal) -> CompilerError:
    """Return the error that says why a kernel is refused, with the line and its text."""
    file = refused.file or function.__code__.co_filename
    line = Line(file, refused.line or function.__code__.co_firstlineno)
    sentence = f"kernel {function.__name__!r} does not compile for a GPU: {refused.text}; at {line}"
    return CompilerError(sentence, line, refused.words)


def type_of(argument: Any, adopted: Any) -> Any:
    """Return the Numba type of a launch's argument, whose form in the simulated kernel is `adopted`.

    Raises TypeError for a value for which Numba has no type.
    """
    if isinstance(adopted, np.ndarray):
        flags = adopted.flags
        layout = "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"
        try:
            element = from_dtype(adopted.dtype)
        except TypingError:
            raise TypeError(f"Numba has no type for an array of {adopted.dtype!r}") from None
        return types.Array(element, adopted.ndim, layout, readonly=not flags.writeable)
    if isinstance(adopted, tuple) and not hasattr(adopted, "_fields"):
        return types.Tuple([type_of(*pair) for pair in zip(argument, adopted, strict=True)])
    try:
        return typeof(argument)
    except ValueError as error:
        raise TypeError(f"Numba has no type for the {type(argument).__name__} {argument!r}") from error
