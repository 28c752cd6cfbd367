"""Map a row, or a slice of one, to threads in vectors: neighbouring elements that one instruction moves.

Thread t of T takes the vectors t, t + T, t + 2T, … of the slice. The lanes of a warp then read adjacent memory: 512
bytes per instruction with 16 bytes per lane. All vectors of a thread lie at fixed distances from its first, so the
compiler needs one address for all of them. A thread with four vectors has four loads in flight before it waits for the
first.
"""

from functools import cache
from typing import Any, NamedTuple

from normlab.engine import DeviceArray, cast, cuda, load_vector_evict_last

BYTES = 16  # bytes per thread that one instruction moves at most
WARP = 32  # lanes per warp


class ThreadMap(NamedTuple):
    """The thread map of a slice of a row: `threads` threads with `vectors` vectors of `width` elements each.

    `whole`: the slice has all vectors of every thread. Otherwise the row ends within the slice, between two vectors.
    """

    threads: int
    vectors: int
    width: int
    whole: bool

    @property
    def elements(self) -> int:
        """Return the number of elements per thread."""
        return self.vectors * self.width

    @property
    def span(self) -> int:
        """Return the distance in elements between two vectors of one thread."""
        return self.threads * self.width  # all threads' first vectors lie side by side, then all second ones

    @property
    def columns(self) -> int:
        """Return the number of elements of the slice, including those past the row's end."""
        return self.vectors * self.span

    @property
    def filled(self) -> int:
        """Return how many vectors of a row that no block shares every thread has: all, or all except the last."""
        return self.vectors - (not self.whole)  # `map_threads` takes no more vectors than the row needs

    @property
    def loop(self) -> tuple[int, int, int, bool]:
        """Return (vectors, width, span, whole): what a thread's loop over its vectors needs to know."""
        return self.vectors, self.width, self.span, self.whole

    @property
    def warps(self) -> int:
        """Return the number of warps that share the slice; 1 also for fewer threads than a warp's."""
        return -(-self.threads // WARP)

    @property
    def lanes(self) -> int:
        """Return the number of lanes per warp that share the slice: below 32 if a warp has several short rows."""
        return min(self.threads, WARP)


def map_threads(n2: int, width: int, threads: int) -> ThreadMap:
    """Return the thread map of a row of n2 columns, a multiple of `width`, for this many threads."""
    # rounded up: the last threads may have one vector less, past the row's end
    vectors = -(-n2 // (width * threads))
    return ThreadMap(threads, vectors, width, vectors * width * threads == n2)


def widest(n2: int, *arrays: Any) -> int:
    """Return the largest number of elements that one instruction can move in rows of n2, in all of the arrays.

    It is a power of two that divides n2, with at most BYTES bytes of the widest dtype. Each array's address is a
    multiple of that many of its elements. Arrays that are None are skipped.
    """
    # halved until all conditions hold; 1 always does
    given = [array for array in arrays if array is not None]
    width = BYTES // max(array.dtype.itemsize for array in given)
    # n2 % width: each row must begin at an aligned address, not only the first
    while n2 % width or any(_address(array) % (width * array.dtype.itemsize) for array in given):
        width //= 2
    return width


def shifts_alike(width: int, *arrays: Any) -> bool:
    """Return True if all arrays begin equally many elements after a multiple of `width` elements."""
    return len({_address(array) // array.dtype.itemsize % width for array in arrays}) == 1


def _address(array: Any) -> int:
    """Return the address of an array's first element, on the device or in host memory."""
    # an array on the device has no `ctypes`
    return array.pointer if isinstance(array, DeviceArray) else array.ctypes.data


def whole_warps(threads: int) -> int:
    """Return the number of threads, rounded up to whole warps."""
    return -(-threads // WARP) * WARP


@cache
def row_loader(thread_map: ThreadMap) -> Any:
    """Return the device function `load_row(values, x, row, first)`, which loads a thread's elements of a row.

    values: local, (thread_map.elements,), accumulator dtype; zeros past the row's end. x: (n1, n2), floating dtype,
    aligned to `thread_map.width` elements. first: the column of the thread's first element.
    """
    vectors, width, span, _ = thread_map.loop
    filled = thread_map.filled

    @cuda.jit(device=True)
    def load_row(values, x, row, first):
        for v in range(vectors):
            column = first + v * span
            inside = v < filled or column < x.shape[1]
            # A thread without a last vector loads the row's: a branch around the load would keep all loads before it
            # from being in flight together. evict_last: L2 keeps the input longer than the output, 1 to 4 % faster
            # (`engine.device.caching`).
            there = column if inside else x.shape[1] - width
            load_vector_evict_last(values, v * width, x, (row, there), width)
            if not inside:  # zeros, so that sums over all elements need no condition
                for k in range(width):
                    values[v * width + k] = cast(0, values)

    return load_row
