"""Convert a launch's arguments to the types of an eager signature, as in `@cuda.jit("void(float32[:], int32)")`.

A scalar is converted to the declared type, as the driver passes it. An array must already have the declared type,
because a GPU would read its bytes as that type; integers may differ in sign. `kernel.py` calls this before a launch,
and `decorator.py` wraps device functions that declare their types.
"""

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from normlab.run.interface import pointed_at
from normlab.run.numba_host import as_dtype, is_signature, normalised, pointee, scalar_dtype, type_of
from normlab.sim.language.integers import INTEGER_CASTS, TYPES, WITH_LOADS_OF_THEIR_OWN

IN_KERNELS = {kind: dtype for dtype, kind in WITH_LOADS_OF_THEIR_OWN.items()}  # NumPy takes most of them for int64


class Signature(NamedTuple):
    """The declared Numba types of the arguments, and of the result (None: not declared)."""

    arguments: tuple
    result: Any


def signature_of(declared: Any) -> Signature:
    """Return one signature, given in any of Numba's spellings."""
    return Signature(*normalised(declared))


def signatures_of(declared: Any) -> list[Signature] | None:
    """Return the signatures that `cuda.jit` was given; None if it was given something else, such as a function."""
    if is_signature(declared):
        return [signature_of(declared)]
    if isinstance(declared, list):
        return list(map(signature_of, declared))
    return None


def is_array(kind: Any) -> bool:
    """Return whether a Numba type is an array's."""
    return hasattr(kind, "layout") and hasattr(kind, "ndim")


def misfit(kind: Any, value: Any, alone: bool) -> int | None:
    """Return how badly a value fits a type: 0 exactly, 1 in a wider type of its kind, 2 safely, 3 otherwise, None not.

    `alone`: no other signature is declared. Numba then reads the bytes of any array as the declared type; here it reads
    those of integers of the same size.
    """
    if is_array(kind):
        if not isinstance(value, np.ndarray):
            return None
        flags = value.flags
        laid_out = {"C": flags.c_contiguous, "F": flags.f_contiguous}.get(kind.layout, True)
        declared = np.dtype(as_dtype(kind.dtype))
        integers = alone and declared.kind + value.dtype.kind in ("iu", "ui") and declared.itemsize == value.itemsize
        fits = kind.ndim == value.ndim and (declared == value.dtype or integers) and laid_out
        return 0 if fits else None
    dtype = scalar_dtype(kind)
    if dtype is None:
        return 0
    if isinstance(value, (np.ndarray, tuple)) or value is None:
        return None
    given = IN_KERNELS.get(type(value)) or np.asarray(value).dtype
    if given == dtype:
        return 0
    return 3 if not np.can_cast(given, dtype, "safe") else 1 if given.kind == dtype.kind else 2


def rank(misfits: list[int | None]) -> tuple[int, ...]:
    """Return a key that is least for the signature that Numba chooses: it counts the worst conversions first."""
    return tuple(map(misfits.count, (None, 3, 2, 1)))


def closest(signatures: list[Signature], values: tuple) -> int:
    """Return the index of the signature that fits a device function's arguments best."""

    def distance(kind: Any, value: Any) -> int | None:
        dimensions = getattr(value, "ndim", 0)  # an array here is an object of the simulator
        if not is_array(kind):
            return None if dimensions else misfit(kind, value, alone=False)
        return 0 if (kind.ndim, as_dtype(kind.dtype)) == (dimensions, getattr(value, "dtype", None)) else None

    ranks = [rank(list(map(distance, signature.arguments, values))) for signature in signatures]
    return ranks.index(min(ranks))


def bind(name: str, signatures: list[Signature], values: list[Any]) -> tuple[Signature, list[Any]]:
    """Return the signature that fits the values of a launch best, and the values in its types.

    Raise TypeError if no signature fits; the message has the kernel's `name`, the given and the declared types.
    """
    given = ", ".join(_spelled(value) for value in values)
    fitting: list[tuple[tuple, int, Signature]] = []
    for signature in signatures:
        if len(signature.arguments) == len(values):
            alone, pairs = len(signatures) == 1, zip(signature.arguments, values, strict=True)
            misfits = [misfit(kind, value, alone) for kind, value in pairs]
            if None not in misfits:
                fitting.append((rank(misfits), len(fitting), signature))
    if not fitting:
        declared = " or ".join(f"({', '.join(map(str, signature.arguments))})" for signature in signatures)
        raise TypeError(
            f"No matching definition for argument type(s) {given} of kernel {name!r}, declared for {declared}"
        )
    chosen = min(fitting)[-1]
    return chosen, [converted(name, kind, value) for kind, value in zip(chosen.arguments, values, strict=True)]


def _spelled(value: Any) -> str:
    try:
        return str(type_of(value))
    except (NotImplementedError, ValueError, TypeError):
        return type(value).__name__


def converted(name: str, kind: Any, value: Any) -> Any:
    """Return a scalar in its declared type: rounded to a narrower float, wrapped to a narrower integer.

    Raise TypeError for a float whose declared type is an integer, as Numba does on a GPU.
    """
    if (pointed := pointee(kind)) is not None:
        return pointed_at(operator.index(value), pointed)
    if is_array(kind) and value.dtype.kind in "iu":
        return value.view(as_dtype(kind.dtype))
    dtype = scalar_dtype(kind)
    if dtype is None:
        return value
    if dtype.kind not in "iu":
        with np.errstate(over="ignore"):
            return dtype.type(value)
    if not hasattr(value, "__index__") and not isinstance(value, np.bool_):
        raise TypeError(
            f"kernel {name!r} declares an argument as {kind}, and was given the {_spelled(value)} {value!r}"
        )
    return dtype.type(INTEGER_CASTS[dtype.name].wrap(operator.index(int(value))))


def casts(signature: Signature) -> tuple[tuple, Any]:
    """Return functions that convert a device function's arguments and result to their declared types; None: no cast."""
    return tuple(map(_cast, signature.arguments)), None if signature.result is None else _cast(signature.result)


def _cast(kind: Any) -> Callable[[Any], Any] | None:
    dtype = scalar_dtype(kind)
    return None if dtype is None else TYPES[dtype.name]
