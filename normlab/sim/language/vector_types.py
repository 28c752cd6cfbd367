"""Build CUDA's vector types: `cuda.float32x4`, also called `float4`, and its likes of one to four elements.

A vector is made of numbers and shorter vectors, `float32x4(float32x2(1, 2), 3, 4)`, and has the attributes x, y, z and
w. As in Numba, a kernel cannot change one. numba-cuda-mlir computes with them, element by element, and loads and stores
vectors of any size and shape (`cuda.vector`, machine/vector.py).
"""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from normlab.sim.language.integers import INTEGER_CASTS

ATTRIBUTES = "xyzw"
# Numba's name of an element → C's names of a vector of such elements.
_ELEMENTS = {
    "int8": ("char",),
    "int16": ("short",),
    "int32": ("int",),
    "int64": ("long", "longlong"),
    "uint8": ("uchar",),
    "uint16": ("ushort",),
    "uint32": ("uint",),
    "uint64": ("ulong", "ulonglong"),
    "float16": ("half",),
    "float32": ("float",),
    "float64": ("double",),
}


class Vector:
    """One vector: a value, as a number is."""

    __slots__ = ("_kind", "elements", "shape")

    def __init__(self, kind: "VectorType", elements: tuple, shape: tuple[int, ...] = ()):
        """Hold `elements` of the kind's type; `shape`, if there is more than one axis."""
        self._kind, self.elements, self.shape = kind, elements, shape or (len(elements),)

    def __getattr__(self, name: str) -> Any:
        """Return x, y, z or w."""
        # `find` would see "xy" as well. A float32x2 has no z, so the place must also lie in the vector.
        position = ATTRIBUTES.find(name) if len(name) == 1 else -1
        if 0 <= position < len(self.elements):
            return self.elements[position]
        raise AttributeError(f"a {self._kind.name} has no attribute {name!r}")

    def __repr__(self) -> str:
        """Return it as Python would make it."""
        return f"{self._kind.name}({', '.join(map(str, self.elements))})"

    def mapped(self, operation: Callable[..., Any], *operands: Any) -> "Vector":
        """Return `operation` of the elements of vectors, and of numbers, in this one's type."""
        # A number counts as a vector of equal elements.
        sides = [one.elements if isinstance(one, Vector) else (one,) * len(self.elements) for one in operands]
        # Cast before, so that a Python int wraps as an element does, and after, because narrow integers add up in 64
        # bits.
        elements = map(operation, *(map(self._kind.cast, side) for side in sides))
        return Vector(self._kind, tuple(map(self._kind.cast, elements)), self.shape)

    def __neg__(self) -> "Vector":
        """Return -v."""
        return self.mapped(operator.neg, self)

    def __abs__(self) -> "Vector":
        """Return abs(v)."""
        return self.mapped(abs, self)


def _operator(function: Callable[[Any, Any], Any], of_two_vectors: bool, reflected: bool) -> Callable[..., Any]:
    def method(self: Vector, other: Any) -> Any:
        # With NotImplemented from both sides, Python raises the TypeError that names operator and types.
        if isinstance(other, Vector) and not of_two_vectors:
            return NotImplemented
        return self.mapped(function, *((other, self) if reflected else (self, other)))

    return method


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod"):
    for _prefix in ("", "r"):
        _method = _operator(getattr(operator, _name), _name in ("add", "sub"), bool(_prefix))
        setattr(Vector, f"__{_prefix}{_name}__", _method)


class VectorType:
    """A vector type; a kernel calls it to make a vector."""

    def __init__(self, element: str, size: int):
        """Have `size` elements of the type that Numba calls `element`."""
        self.name, self.size = f"{element}x{size}", size
        self.cast: Any = INTEGER_CASTS[element] if element in INTEGER_CASTS else getattr(np, element)

    def __call__(self, *parts: Any) -> Vector:
        """Return a vector of numbers and of the elements of vectors."""
        # The parts' lengths may be split anyhow, float32x4(1, float32x2(2, 3), 4) too, so count elements and not parts.
        values = [one for part in parts for one in (part.elements if isinstance(part, Vector) else (part,))]
        if len(values) != self.size:
            raise TypeError(f"{self.name} takes {self.size} elements, got {len(values)}")
        return Vector(self, tuple(map(self.cast, values)))


def _vector_types() -> dict[str, VectorType]:
    """Return all types under all their names."""
    found: dict[str, VectorType] = {}
    for element, names in _ELEMENTS.items():
        for size in (1, 2, 3, 4):
            kind = VectorType(element, size)
            # One object under all names, so that a vector made as `float4` is of the type `float32x4`.
            found |= dict.fromkeys((kind.name, *(f"{name}{size}" for name in names)), kind)
    return found


VECTOR_TYPES = _vector_types()
