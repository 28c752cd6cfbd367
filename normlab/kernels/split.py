"""Cut rows that no block holds, and no cluster holds well, into pieces, forward and backward.

Both directions read the rows twice. For the row's sums each block takes one piece of one row, and each of its threads
VECTORS vectors of the piece. A second kernel, with one block per row, adds up the pieces' sums. For the elementwise
second reading each thread takes one vector of columns, row after row, so that its parameters stay in registers.
"""

from typing import NamedTuple

from normlab.kernels.plan import GRID_LIMIT_Y, Chains
from normlab.kernels.words import counted
from normlab.stages.vector import BYTES, WARP

THREADS = 256  # per piece
VECTORS = 4  # per thread of a piece
WARPS = THREADS // WARP
ROW_THREADS = 128  # per block that adds up a row's pieces
ROW_WARPS = ROW_THREADS // WARP
COLUMN_THREADS = 128  # per block of the second reading
AT_ONCE = 4  # rows that a thread fetches before it works on the first
RESIDENT_THREADS = 1024  # per multiprocessor: the second reading divides the rows among groups of blocks to have them
MOST_ROWS = 64  # per thread at most, so that sums over rows stay short


def pieces_for(n2: int, width: int) -> int:
    """Return the number of pieces per row. width: elements per vector."""
    return -(-n2 // (THREADS * VECTORS * width))


def groups_for(n1: int, n2: int, width: int, processors: int) -> int:
    """Return the number of groups of rows for the second reading: enough to keep a GPU with so many processors busy.

    A group has AT_ONCE to MOST_ROWS rows. Each group has blocks of its own for all columns.
    """
    # a group has a thread per vector of a row; all groups together give each multiprocessor RESIDENT_THREADS
    busy = -(-processors * RESIDENT_THREADS * width // n2)
    return min(max(busy, -(-n1 // MOST_ROWS)), -(-n1 // AT_ONCE), GRID_LIMIT_Y)


def widths_of(n2: int) -> list[int]:
    """Return the vector widths that some dtype and alignment can lead to for rows of n2."""
    return [width for width in (1, 2, 4, BYTES // 2) if n2 % width == 0]


class Pieces(NamedTuple):
    """How rows are cut up: pieces per row, elements per vector, groups of rows in the second reading."""

    pieces: int
    width: int
    groups: int

    @property
    def words(self) -> list[str]:
        """Return each number in words."""
        return [
            f"{counted(self.pieces, 'piece')} per row, a block of {THREADS} threads each",
            f"{counted(VECTORS, 'vector')} of {counted(self.width, 'element')} per thread",
            f"in the second reading {counted(self.groups, 'block')} per vector of columns, "
            + ("which take its rows in turn" if self.groups > 1 else "which takes all its rows"),
        ]


def row_chains_of(pieces: int, width: int) -> Chains:
    """Return the chains along a row of so many pieces."""
    # Merges: a piece's 256 threads are 5 levels of lanes and 3 of warps, a row's 128 threads 5 and 2.
    return Chains(VECTORS * width + -(-pieces // ROW_THREADS), 15)


def row_chains(n2: int) -> Chains:
    """Return the longest chains along a row of n2: with the widest vectors, and with the most pieces."""
    return row_chains_of(pieces_for(n2, min(widths_of(n2))), max(widths_of(n2)))
