"""Checks of the host functions' arguments. They run before a kernel does, and errors use the caller's names.

An error about two arguments that do not fit names both. Used by all of `normlab.host`.
"""

import inspect
import math
import numbers
import operator
import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from math import prod
from typing import Any, TypeVar

import numpy as np

from normlab import engine
from normlab.host.arrays import FLOATS, Backend, HostBackend, dtype_name
from normlab.kernels import BEST, LADDERS, ProductStep, Step

HALVES = ("float16", "bfloat16")
PATIENCE = 60.0  # seconds of simulation before a warning
MIXED = tuple(("float32", half) for half in HALVES) + tuple((half, "float32") for half in HALVES)  # input, parameters
MIXES = ", ".join(f"{a} with {b}" for a, b in MIXED)  # in words
Rung = TypeVar("Rung", Step, ProductStep)
Function = TypeVar("Function", bound=Callable[..., Any])


def positional(*names: str) -> Callable[[Function], Function]:
    """Return a decorator that lets a function take keyword-only arguments by position, with a DeprecationWarning.

    names: the arguments, in the order in which they followed the last positional argument up to normlab 0.1. To be
    removed in 0.3.
    """

    def allow(function: Function) -> Function:
        parameters = inspect.signature(function).parameters.values()
        count = sum(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters)

        @wraps(function)
        def call(*args: Any, **keywords: Any) -> Any:
            late = args[count:]
            if not late or len(late) > len(names):  # the function itself refuses too many
                return function(*args, **keywords)
            given = dict(zip(names, late, strict=False))
            twice = sorted(given.keys() & keywords.keys())
            if twice:
                raise TypeError(f"{function.__name__}() got multiple values for argument {twice[0]!r}")
            warnings.warn(
                f"{function.__name__}() will take {', '.join(given)} by keyword only: write {next(iter(given))}=...",
                DeprecationWarning,
                stacklevel=2,
            )
            return function(*args[:count], **given, **keywords)

        return call  # type: ignore[return-value]

    return allow


def shape_of(normalized_shape: Any) -> tuple[int, ...]:
    """Return `normalized_shape` as a tuple of positive ints.

    Raises:
        TypeError: it is neither an int nor a sequence of ints.
        ValueError: it has no dimension, or one that is not positive.
    """
    entries = normalized_shape if isinstance(normalized_shape, (Sequence, np.ndarray)) else (normalized_shape,)
    try:
        shape = tuple(operator.index(entry) for entry in entries)
    except TypeError:
        raise TypeError(f"normalized_shape must be an int or a tuple of ints, got {normalized_shape!r}") from None
    if not shape:
        raise ValueError("Expected normalized_shape to be at least 1-dimensional, got normalized_shape=()")
    if min(shape) < 1:
        raise ValueError(f"every dimension of normalized_shape must be at least 1, got normalized_shape={shape}")
    return shape


def rows_and_columns(name: str, array: Any, normalized_shape: tuple[int, ...]) -> tuple[int, int]:
    """Return (n1, n2): the number of rows of an array, and the number of elements per row.

    Raises:
        ValueError: the array's trailing dimensions are not normalized_shape.
    """
    shape = tuple(array.shape)
    if shape[-len(normalized_shape) :] != normalized_shape:
        expected = ", ".join(["*", *map(str, normalized_shape)])
        raise ValueError(
            f"Given normalized_shape={list(normalized_shape)}, expected {name} with shape [{expected}], "
            f"but got {name} of shape {list(shape)}"
        )
    return prod(shape[: -len(normalized_shape)]), prod(normalized_shape)


def rows_of(name: str, array: Any) -> tuple[tuple[int, ...], int, int]:
    """Return the leading dimensions, their product, and the last dimension. Raise ValueError if it is absent or 0."""
    shape = tuple(array.shape)
    if not shape or not shape[-1]:
        raise ValueError(f"{name} must have a last dimension of at least 1 to normalise over, got shape {list(shape)}")
    n1, n2 = rows_and_columns(name, array, shape[-1:])
    return shape[:-1], n1, n2


def check_shape(name: str, array: Any, shape: tuple[int, ...], because: str) -> None:
    """Raise ValueError unless an array is None or has this shape; `because` says where the shape comes from."""
    if array is not None and tuple(array.shape) != shape:
        raise ValueError(f"Expected {name} to be of shape {list(shape)} ({because}), but got {list(array.shape)}")


def check_matrix(name: str, array: Any) -> None:
    """Raise ValueError unless an array has two dimensions."""
    if len(array.shape) != 2:
        raise ValueError(f"{name} must be a matrix, got {len(array.shape)}-D of shape {list(array.shape)}")


def check_float32(arrays: dict[str, Any]) -> None:
    """Raise TypeError unless all arrays of a product, by name, are float32 or None."""
    for name, array in arrays.items():
        check_dtype(name, array, "float32", "the one dtype of the SGEMM ladder")


def check_dtype(name: str, array: Any, dtype: str, because: str) -> None:
    """Raise TypeError unless an array is None or has this dtype; `because` says where the dtype comes from."""
    if array is not None and dtype_name(array) != dtype:
        raise TypeError(f"Expected {name} to be {dtype} ({because}), but got {dtype_name(array)}")


def parameter_dtype(name: str, array: Any, weight: Any, bias: Any, labels: tuple[str, str] = ("weight", "bias")) -> str:
    """Return the dtype of weight, bias and the output, apex's V. array: the input or the saved output.

    labels: the caller's names of weight and bias.

    Raises:
        TypeError: there are no kernels for a dtype or for the mix of dtypes.
    """
    given = dict(zip(labels, (weight, bias), strict=True))
    for label, operand in {name: array, **given}.items():
        if operand is not None and dtype_name(operand) not in FLOATS:
            raise TypeError(f"{label} must be one of {', '.join(FLOATS)}, but got {dtype_name(operand)}")
    dtype = dtype_name(array)
    for label, parameter in given.items():
        if parameter is None:
            continue
        kind = dtype_name(parameter)
        if kind != dtype and (dtype, kind) not in MIXED:
            raise TypeError(
                f"{name} is {dtype} and {label} is {kind}: they must have one dtype, or mix {MIXES} parameters"
            )
    if weight is not None:
        check_dtype(labels[1], bias, dtype_name(weight), f"as {labels[0]}")
    parameter = bias if weight is None else weight
    return dtype if parameter is None else dtype_name(parameter)


def input_dtype(given: Any, saved: Any, memory_efficient: Any, name: str = "input_dtype") -> str:
    """Return the dtype of the forward's input and of its gradient: the given one, or for None the dtype of `saved`.

    name: the caller's name of `given`.

    Raises:
        TypeError: `saved` is the input and has another dtype, or no norm has an output of `saved`'s dtype for it.
    """
    dtype = dtype_name(saved)
    named = np.dtype(given).name if isinstance(given, (type, np.dtype)) else str(given)
    wanted = dtype if given is None else named.removeprefix("torch.")
    if wanted == dtype or (memory_efficient and (wanted, dtype) in MIXED):
        return wanted
    if not memory_efficient:
        raise TypeError(f"Expected {name} to be {dtype} (as saved, which is the input), but got {wanted}")
    raise TypeError(f"{name} is {wanted} and saved is {dtype}: they must be one dtype, or mix {MIXES} outputs")


def statistics_dtype(dtype: str) -> str:
    """Return the dtype of statistics and sums, apex's U."""
    return "float64" if dtype == "float64" else "float32"


def check_parameters(weight: Any, bias: Any, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless weight and bias each are None or have the normalized shape."""
    check_shape("weight", weight, shape, "normalized_shape")
    check_shape("bias", bias, shape, "normalized_shape")


def check_statistics(statistics: dict[str, Any], leading: tuple[int, ...], dtype: str, of: str) -> None:
    """Raise unless all of a norm's statistics are None or have the leading shape of the array `of`, and U's dtype."""
    for name, array in statistics.items():
        check_shape(name, array, leading, f"the leading dimensions of {of}")
        check_dtype(name, array, dtype, "statistics are kept in accumulator precision")


def rounded_eps(eps: Any, dtype: str) -> Any:
    """Return eps in the accumulators' dtype, where too large a value is infinite; raise TypeError if not a number."""
    with np.errstate(over="ignore"):
        return FLOATS[dtype].type(number(eps))


def number(value: Any, name: str = "eps") -> float:
    """Return a real number as a float, or raise TypeError."""
    if not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a real number, got {value!r}")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # type: ignore[operator]  # numbers.Real declares no order


def warn_if_slow(backend: Backend, seconds: float, what: str, instead: str, stacklevel: int) -> None:
    """Warn the caller if the simulator will take longer than PATIENCE for `what`; `instead` says what is faster."""
    if seconds > PATIENCE and isinstance(backend, HostBackend) and not engine.use_gpu():
        warnings.warn(
            f"the simulator takes about {duration(seconds)} for {what}; {instead}, and a GPU takes milliseconds",
            stacklevel=stacklevel,
        )


def duration(seconds: float) -> str:
    """Return a number of seconds in words."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} minutes"


def step_of(direction: str, name: str | None) -> Step:
    """Return the step of a norm's ladder that has this name, or the best one for None.

    Raises:
        ValueError: there is no such step; the message lists the steps of the ladder.
    """
    return _named(LADDERS[direction], direction, name)


def product_step(name: str | None) -> ProductStep:
    """Return the step of the SGEMM ladder that has this name, or the best one for None; raise as `step_of`."""
    return _named(LADDERS["sgemm"], "sgemm", name)


def _named(steps: tuple[Rung, ...], ladder: str, name: str | None) -> Rung:
    wanted = BEST[ladder] if name is None else name
    for step in steps:
        if step.name == wanted:
            return step
    raise ValueError(f"unknown step {name!r} of the {ladder} ladder; known: {', '.join(step.name for step in steps)}")
