"""Fill fresh device memory with a recognisable NaN or with the byte 0x5a, and find the elements still unwritten.

A program may allocate memory, write half of it in one launch, and read all of it in another launch. For the sanitizer,
`unwritten` recognises unwritten elements by their content, because a program is unlikely to compute these values.
"""

import math
from typing import Any

import ml_dtypes
import numpy as np

BYTE = b"\x5a"
NAN = {  # little endian: the payload 5a…, below the bits of a quiet NaN
    np.dtype(np.float64): BYTE * 6 + b"\xfa\x7f",
    np.dtype(np.float32): BYTE * 2 + b"\xda\x7f",
    np.dtype(np.float16): BYTE + b"\x7e",
    np.dtype(ml_dtypes.bfloat16): b"\xda\x7f",
}
NAN[np.dtype(np.complex64)] = NAN[np.dtype(np.float32)] * 2
NAN[np.dtype(np.complex128)] = NAN[np.dtype(np.float64)] * 2
TELLING = 4  # bytes: a shorter element may equal the poison by chance, so only a whole array of them counts as fresh


def pattern(dtype: np.dtype) -> np.ndarray:
    """Return the bytes of one fresh element."""
    return np.frombuffer(NAN.get(dtype) or BYTE * dtype.itemsize, np.uint8)


def poisoned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return fresh memory, filled with the pattern of its dtype."""
    memory = np.empty(shape, dtype)
    if memory.size and dtype.itemsize:
        memory.reshape(-1).view(np.uint8).reshape(-1, dtype.itemsize)[:] = pattern(dtype)
    return memory


def uninitialised(shape: Any, dtype: Any, strides: Any, order: str = "C") -> np.ndarray:
    """Return fresh memory. Raise TypeError or ValueError for an invalid shape, strides or order."""
    extents = shape if isinstance(shape, (tuple, list)) or np.ndim(shape) else (shape,)
    if not all(isinstance(extent, (int, np.integer)) for extent in extents):
        raise TypeError(f"shape must be an integer or tuple of integers, not {shape!r}")
    if order not in ("C", "F"):
        raise ValueError("must be either C/F order")
    dtype, extents = np.dtype(dtype), tuple(int(extent) for extent in extents)
    if strides is None or 0 in extents:
        axes = extents if order == "C" else extents[::-1]
        memory = poisoned(axes, dtype)
        return memory if order == "C" else memory.T
    strides = strides if isinstance(strides, (tuple, list)) else (strides,)
    if len(strides) != len(extents):
        raise ValueError("strides not match ndim")
    span = sum((extent - 1) * stride for extent, stride in zip(extents, strides, strict=True)) + dtype.itemsize
    flat = poisoned((math.ceil(span / dtype.itemsize),), dtype)
    return np.lib.stride_tricks.as_strided(flat, extents, strides)


def unwritten(memory: np.ndarray) -> list[np.ndarray]:
    """Return views of the elements of `memory` that are still fresh: the whole array, or runs of elements."""
    if not memory.size:
        return []
    elements = np.ascontiguousarray(memory).reshape(-1).view(np.uint8).reshape(memory.size, -1)
    fresh = (elements == pattern(memory.dtype)).all(axis=1)
    if fresh.all():
        return [memory]
    if memory.dtype.itemsize < TELLING:
        return []
    rows = (1, -1) if memory.flags.c_contiguous else memory.shape
    memory, fresh = memory.reshape(rows), fresh.reshape(rows)
    return [
        memory[row][first:end]
        for row in np.ndindex(memory.shape[:-1])
        for first, end in np.flatnonzero(np.diff(fresh[row], prepend=False, append=False)).reshape(-1, 2)
    ]
