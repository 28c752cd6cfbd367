"""Count how often each element of an array was loaded and stored, and which bytes were touched at all."""

import numpy as np

from normlab.sim.machine.observed import Buffer


class Heat:
    """The loads and stores of an array, element by element (an atomic does both, an asynchronous copy one of them).

    The arrays of one name and shape that several blocks have in shared memory count as one.
    """

    def __init__(self, buffer: Buffer):
        """Start all counts of the array of `buffer` at 0."""
        self.name, self.space, self.shape = buffer.name, buffer.space, buffer.array.shape
        self.itemsize = buffer.array.itemsize
        self._strides = buffer.array.strides
        self._contiguous = buffer.array.flags.c_contiguous
        self._counts = {operation: np.zeros(buffer.array.size, np.uint32) for operation in ("ld", "st")}

    def count(self, operation: str, offsets: np.ndarray, size: int) -> None:
        """Count accesses of `size` bytes at `offsets` bytes from the array's beginning."""
        # An asynchronous copy is logged once for each of its two arrays: the global one is read, the shared one
        # written.
        copied = ("ld",) if self.space == "global" else ("st",)
        kinds = {"atom": ("ld", "st"), "ldgsts": copied}.get(operation, (operation,))
        # A vector access of 16 bytes touches four float32, each of which counts.
        for step in range(0, size, self.itemsize):
            elements = self._elements(offsets + step)
            for kind in kinds:
                # `counts[elements] += 1` would count an element once, however often it stands in `elements`.
                np.add.at(self._counts[kind], elements, np.uint32(1))

    def _elements(self, offsets: np.ndarray) -> np.ndarray:
        """Return the numbers, in C order, of the elements at `offsets`."""
        if self._contiguous:
            return offsets // self.itemsize
        rest, number = offsets, np.zeros(len(offsets), np.int64)
        if min(self._strides, default=0) < 0:  # a reversed view: its first element is not its lowest
            rest = rest - sum(
                stride * (extent - 1) for stride, extent in zip(self._strides, self.shape, strict=True) if stride < 0
            )
        # Divide by the largest stride first: what is left over belongs to the axes with smaller strides.
        order = sorted(range(len(self.shape)), key=lambda axis: -abs(self._strides[axis]))
        # How many elements one step along each axis skips in C order.
        weights = np.cumprod((1, *self.shape[:0:-1]))[::-1]
        for axis in order:
            stride = abs(self._strides[axis])
            index = np.minimum(rest // stride, self.shape[axis] - 1) if stride else np.zeros_like(rest)
            rest = rest - index * stride
            number += (self.shape[axis] - 1 - index if self._strides[axis] < 0 else index) * weights[axis]
        return number

    def counted(self, stores: bool) -> np.ndarray:
        """Return the counts in the shape of the array."""
        return self._counts["st" if stores else "ld"].reshape(self.shape)


class Touched:
    """The bytes of one allocation of global memory that were loaded, and those that were stored, by any array."""

    def __init__(self, allocation: range):
        """Start with no byte touched."""
        self._start = allocation.start
        # One bool per byte of the allocation, as any dtype and any view may touch it.
        self._bytes = {operation: np.zeros(len(allocation), bool) for operation in ("ld", "st")}

    def touch(self, operation: str, addresses: np.ndarray, size: int) -> None:
        """Mark the bytes of loads ("ld"), stores ("st") or copies ("ldgsts") of `size` bytes each; ignore atomics."""
        # An asynchronous copy loads from global memory: what it writes is shared.
        kind = "ld" if operation == "ldgsts" else operation
        if kind in self._bytes:
            for step in range(size):
                self._bytes[kind][addresses - self._start + step] = True

    def count(self, operation: str) -> int:
        """Return the bytes that `operation` touched at least once."""
        return int(self._bytes[operation].sum())
