"""A row, or a slice of one, dealt to threads in vectors: neighbouring elements that one instruction moves.

Thread t of T takes the vectors t, t + T, t + 2T, … of the slice, so that the lanes of a warp read one stretch of memory
and every vector of a thread lies at a fixed distance from its first: the compiler then needs one address for all. With
16 bytes a lane a warp asks for 512 bytes at a time, and a thread with four vectors has four requests in flight before
it waits for the first.
"""

from functools import cache
from typing import Any, NamedTuple

from normlab.engine import DeviceArray, cast, cuda, load_vector_evict_last

BYTES = 16  # what one instruction moves at most
WARP = 32  # lanes


class Deal(NamedTuple):
    """How a slice of a row is dealt: `threads` threads, `vectors` vectors of `width` elements each.

    `whole`: every thread has all of its vectors. Otherwise the row ends within the slice, between two vectors.
    """

    threads: int
    vectors: int
    width: int
    whole: bool

    @property
    def elements(self) -> int:
        """Elements of one thread."""
        return self.vectors * self.width

    @property
    def span(self) -> int:
        """The distance between two vectors of one thread."""
        return self.threads * self.width

    @property
    def columns(self) -> int:
        """Elements of the slice, those past the row's end counted in."""
        return self.vectors * self.span

    @property
    def warps(self) -> int:
        """Warps that share the slice."""
        return -(-self.threads // WARP)

    @property
    def lanes(self) -> int:
        """Lanes of a warp that share the slice: fewer than 32 if it is a short row, and others have the rest."""
        return min(self.threads, WARP)


def dealt(n2: int, width: int, threads: int) -> Deal:
    """A row of n2 columns, a multiple of `width`, dealt to so many threads."""
    vectors = -(-n2 // (width * threads))
    return Deal(threads, vectors, width, vectors * width * threads == n2)


def widest(n2: int, *arrays: Any) -> int:
    """The most elements of a row of n2 that one instruction can move, in every one of the arrays.

    A power of two: no wider than BYTES of the widest dtype, a divisor of n2, and such that the arrays begin at a
    multiple of it. None among the arrays is passed over.
    """
    given = [array for array in arrays if array is not None]
    width = BYTES // max(array.dtype.itemsize for array in given)
    while n2 % width or any(_address(array) % (width * array.dtype.itemsize) for array in given):
        width //= 2
    return width


def _address(array: Any) -> int:
    return array.pointer if isinstance(array, DeviceArray) else array.ctypes.data


def whole_warps(threads: int) -> int:
    """So many threads, rounded up to whole warps."""
    return -(-threads // WARP) * WARP


@cache
def row_loader(deal: Deal) -> Any:
    """The device function `load_row(values, x, row, first)`: this thread's share of a row, in registers.

    L2 gives up the row later than what is written, which makes a norm 1 to 4 % faster (`engine.caching`).

    values: local, (deal.elements,), accumulator dtype; zeros past the row's end. x: (n1, n2), any floating dtype, at an
    address that `deal.width` elements divide. first: the column of the thread's first element.
    """
    vectors, width, span, whole = deal.vectors, deal.width, deal.span, deal.whole

    @cuda.jit(device=True)
    def load_row(values, x, row, first):
        for v in range(vectors):
            column = first + v * span
            if whole or column < x.shape[1]:
                load_vector_evict_last(values, v * width, x, (row, column), width)
            else:
                for k in range(width):
                    values[v * width + k] = cast(0, values)

    return load_row
