"""How rows that no block holds, and no cluster well, are cut up, forward and backward: into pieces, one for a block.

A thread of a piece has some vectors; where every element is then worked on by itself, a thread has a vector of one row
after another, so that parameters stay in its registers.
"""

from typing import NamedTuple

from normlab.kernels.plan import Chains
from normlab.kernels.words import counted
from normlab.stages.vector import BYTES, WARP

THREADS = 256  # of a piece
VECTORS = 4  # of a thread
WARPS = THREADS // WARP
ROW_THREADS = 128  # which add up a row's pieces
ROW_WARPS = ROW_THREADS // WARP
COLUMN_THREADS = 128
AT_ONCE = 4  # rows of which a thread fetches its columns before it works on the first
RESIDENT_THREADS = 1024  # of a multiprocessor: so many have work before blocks stand above each other
MOST_ROWS = 64  # of a thread, so that sums over rows stay short
GRID_LIMIT = 65535  # of the second dimension


def pieces_for(n2: int, width: int) -> int:
    """Pieces of a row."""
    return -(-n2 // (THREADS * VECTORS * width))


def groups_for(n1: int, n2: int, width: int, processors: int) -> int:
    """Blocks above each other on the same columns: enough to keep a GPU busy, each with AT_ONCE to MOST_ROWS rows."""
    busy = -(-processors * RESIDENT_THREADS * width // n2)
    return min(max(busy, -(-n1 // MOST_ROWS)), -(-n1 // AT_ONCE), GRID_LIMIT)


def widths_of(n2: int) -> list[int]:
    """The vectors that rows of some dtype and alignment come in."""
    return [width for width in (1, 2, 4, BYTES // 2) if n2 % width == 0]


class Pieces(NamedTuple):
    """How rows are cut up: pieces of a row, elements of a vector, groups of rows."""

    pieces: int
    width: int
    groups: int

    @property
    def words(self) -> list[str]:
        """Return each number in words."""
        return [
            f"{counted(self.pieces, 'piece')} per row, a block of {THREADS} threads each",
            f"{counted(VECTORS, 'vector')} of {counted(self.width, 'element')} per thread",
            f"at the end {counted(self.groups, 'block')} one above another on the same columns, each with every "
            f"{self.groups}th row",
        ]


def rows_of(pieces: int, width: int) -> Chains:
    """Return the chains along a row of so many pieces."""
    return Chains(VECTORS * width + -(-pieces // ROW_THREADS), 15)


def row_chains(n2: int) -> Chains:
    """Of sums along a row, for the widest vectors and the most pieces that there may be."""
    return rows_of(pieces_for(n2, min(widths_of(n2))), max(widths_of(n2)))
