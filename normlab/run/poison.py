"""Fill fresh device memory with a recognisable NaN or with the byte 0x5a, and find the elements still unwritten.

A program may allocate memory, write half of it in one launch, and read all of it in another launch. For the sanitizer,
`unwritten` recognises unwritten elements by their content, because a program is unlikely to compute these values.
"""

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
