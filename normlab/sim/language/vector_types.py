"""Build CUDA's vector types: `cuda.float32x4`, also called `float4`, and its likes of one to four elements.

A vector is made of numbers and shorter vectors, `float32x4(float32x2(1, 2), 3, 4)`, and has the attributes x, y, z and
w. As in Numba, a kernel cannot change one.
"""

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
    "float32": ("float",),
    "float64": ("double",),
}


class Vector:
    """One vector: a value, as a number is."""

    __slots__ = ("_elements", "_kind")

    def __init__(self, kind: "VectorType", elements: tuple):
        """Hold `elements` of the kind's type."""
        self._kind, self._elements = kind, elements

    def __getattr__(self, name: str) -> Any:
        """Return x, y, z or w."""
        position = ATTRIBUTES.find(name) if len(name) == 1 else -1
        if 0 <= position < len(self._elements):
            return self._elements[position]
        raise AttributeError(f"a {self._kind.name} has no attribute {name!r}")

    def __repr__(self) -> str:
        """Return it as Python would make it."""
        return f"{self._kind.name}({', '.join(map(str, self._elements))})"


class VectorType:
    """A vector type; a kernel calls it to make a vector."""

    def __init__(self, element: str, size: int):
        """Have `size` elements of the type that Numba calls `element`."""
        self.name, self.size = f"{element}x{size}", size
        self._cast: Any = INTEGER_CASTS[element] if element in INTEGER_CASTS else getattr(np, element)

    def __call__(self, *parts: Any) -> Vector:
        """Return a vector of numbers and of the elements of vectors."""
        values = [one for part in parts for one in (part._elements if isinstance(part, Vector) else (part,))]
        if len(values) != self.size:
            raise TypeError(f"{self.name} takes {self.size} elements, got {len(values)}")
        return Vector(self, tuple(map(self._cast, values)))


def _vector_types() -> dict[str, VectorType]:
    """Return all types under all their names."""
    found: dict[str, VectorType] = {}
    for element, names in _ELEMENTS.items():
        for size in (1, 2, 3, 4):
            kind = VectorType(element, size)
            found |= dict.fromkeys((kind.name, *(f"{name}{size}" for name in names)), kind)
    return found


VECTOR_TYPES = _vector_types()
