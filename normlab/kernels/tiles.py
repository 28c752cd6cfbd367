"""Lay out tiles of short rows: which lanes share a row, and how many rows a warp takes together.

Which rows come as tiles is said in `forward.short_rows` and `backward.short_rows.tiles`.
"""

from functools import cache
from typing import Any, NamedTuple

from normlab.engine import cuda
from normlab.kernels.words import counted
from normlab.stages.ahead import NARROWEST
from normlab.stages.vector import BYTES, WARP, ThreadMap, map_threads

ACCUMULATOR_BYTES = 4  # the kernel computes in float32
# Per lane and row, unless 32 lanes have more: of each, registers hold two sums, gamma, beta and 1 / gamma from row to
# row.
ELEMENTS = 8
WARPS = 8  # per block
# Pipeline stages per warp: one is read while the other one is filled. Three smaller ones took the backward 1 to 3 %
# longer.
STAGES = 2
# Blocks that a multiprocessor must have registers for, if its shared memory holds as many: three took up to a fifth
# longer.
RESIDENT, RESIDENT_BYTES = 2, 113 * 1024
ALIGNED_ROWS = 8  # rows of any length that are whole vectors of 16 bytes together


class Reason(NamedTuple):
    """Why rows of up to so many columns are taken as tiles."""

    columns_up_to: int
    why: str


class TileLayout(NamedTuple):
    """How one warp, or all warps of a block, take a tile of rows.

    A lane group is the lanes that share a row. The row's vectors go round them, as in `thread_map`: neighbouring lanes
    read neighbouring banks of shared memory.
    """

    n2: int
    lanes: int  # per row, a power of two
    width: int  # elements of a lane's vectors; it divides n2
    turns: int  # rows of a tile per lane group, if one warp takes it
    together: int  # elements per copy between global and shared memory
    saved_bytes: int  # per element of the saved array
    grad_bytes: int  # per element of grad_output; 0 in the forward
    result_bytes: int  # per element of the output or grad_input
    statistics: int  # arrays with a number per row: invvar, and mean if it is needed
    warps: int = WARPS  # per block
    warps_per_tile: int = 1  # or all of the block's, each with an equal part of the turns

    @property
    def thread_map(self) -> ThreadMap:
        """Return the thread map of a row."""
        return map_threads(self.n2, self.width, self.lanes)

    @property
    def apart(self) -> int:
        """Return how many rows apart the lane groups of a warp should be, a power of two.

        Each reads lanes * width elements at a time. They wait for no bank of shared memory where their rows begin an
        odd multiple of that apart. Rows of 63 columns that lie side by side begin one bank apart: of four lane groups
        three would wait.
        """
        return max(1, self.lanes * self.width // (self.n2 & -self.n2))

    @property
    def neighbours(self) -> int:
        """Return how many neighbouring rows a lane group takes one after another (`row_finder`), a power of two."""
        return min(self.turns, self.apart)

    @property
    def threads(self) -> int:
        """Return the threads per block."""
        return self.warps * WARP

    @property
    def groups(self) -> int:
        """Return the lane groups per warp."""
        return WARP // self.lanes

    @property
    def rows(self) -> int:
        """Return the rows per tile."""
        return self.turns * self.groups

    @property
    def tile(self) -> int:
        """Return the elements of a tile of one matrix."""
        return self.rows * self.n2

    @property
    def stage_bytes(self) -> int:
        """Return the bytes that a tile's stage has, of all arrays."""
        return self.tile * (self.saved_bytes + self.grad_bytes) + ACCUMULATOR_BYTES * self.rows * self.statistics

    @property
    def tiles_at_once(self) -> int:
        """Return how many tiles a block takes at the same time."""
        return self.warps // self.warps_per_tile

    @property
    def turns_per_warp(self) -> int:
        """Return how many rows of a tile a lane group takes, one after another."""
        return self.turns // self.warps_per_tile

    @property
    def grads_at(self) -> int:
        """Return the offset of grad_output's stages, in its elements. All stages of one array lie together."""
        return self.tiles_at_once * STAGES * self.tile * self.saved_bytes // self.grad_bytes

    @property
    def statistics_at(self) -> int:
        """Return the offset of the statistics' stages, in accumulators."""
        return self.tiles_at_once * STAGES * self.tile * (self.saved_bytes + self.grad_bytes) // ACCUMULATOR_BYTES

    @property
    def in_place(self) -> bool:
        """Return True if a result takes the place of the element of x, or of grad_output, that a lane has loaded."""
        return self.result_bytes == (self.grad_bytes or self.saved_bytes)

    @property
    def results_at(self) -> int:
        """Return the offset of the tiles' results, in their elements, if they are not in place."""
        stages_end = self.statistics_at + self.tiles_at_once * STAGES * self.rows * self.statistics
        return stages_end * ACCUMULATOR_BYTES // self.result_bytes

    @property
    def shared_bytes(self) -> int:
        """Return the dynamic shared memory of a block; in the end it holds two sums of each column per warp."""
        results = 0 if self.in_place else self.tiles_at_once * self.tile
        return max(self.result_bytes * (self.results_at + results), ACCUMULATOR_BYTES * 2 * self.warps * self.n2)

    @property
    def resident(self) -> int:
        """Return how many blocks a multiprocessor must have registers for, at least."""
        return RESIDENT if self.shared_bytes <= RESIDENT_BYTES else 1

    @property
    def words(self) -> list[str]:
        """Return each number in words."""
        team = "warp" if self.warps_per_tile == 1 else "block"
        return [
            f"{counted(self.rows, 'row')} per tile, {counted(self.lanes, 'lane')} each; a tile per {team}",
            f"{counted(self.thread_map.vectors, 'vector')} of {counted(self.width, 'element')} per lane",
            f"{counted(STAGES, 'stage')} per {team}, filled by copies of {counted(self.together, 'element')}",
        ]


@cache
def row_finder(layout: TileLayout) -> Any:
    """Return the device function `row_of(turn)`: which row of the tile lane group 0 takes in a turn.

    Lane group g takes the row g layout.neighbours later. For turns below k, and a multiple of k, where k is a power of
    two, row_of(multiple + turn) = row_of(multiple) + row_of(turn).
    """
    neighbours, together = layout.neighbours, layout.neighbours * layout.groups

    @cuda.jit(device=True)
    def row_of(turn):
        return turn // neighbours * together + turn % neighbours

    return row_of


def lanes_for(n2: int) -> int:
    """Return the lanes that share a row: a power of two, as few as give each at most ELEMENTS elements, or all 32."""
    return min(WARP, 1 << (-(-n2 // ELEMENTS) - 1).bit_length())


def tile_for(n2: int, width: int, sizes: tuple[int, int, int], statistics: int, stage_bytes: int) -> TileLayout:
    """Return the layout of rows of n2 columns in stages of at most so many bytes, if eight rows have no more.

    sizes: bytes of an element of x or the saved array, of grad_output, or 0, and of the result. Otherwise as in the
    layout. n1 is no argument: a row's bits are the same in every batch.
    """
    rows = max(ALIGNED_ROWS, WARP // lanes_for(n2))
    turns, together = rows * lanes_for(n2) // WARP, BYTES // max(sizes)
    layout = TileLayout(n2, lanes_for(n2), width, turns, together, *sizes, statistics)
    while 2 * layout.stage_bytes <= stage_bytes:
        layout = layout._replace(turns=2 * layout.turns)
    return layout


def with_smaller_tiles(layout: TileLayout, n1: int, tiles: int, least_rows: int = 1) -> TileLayout:
    """Return the layout with tiles of so few rows that n1 rows are `tiles` of them, or of as few as are allowed.

    A tile has `least_rows` or more, and as many bytes as a copy can move: copies may become narrower, and the caller
    chooses them. How many rows a tile has changes no bit of a row.
    """
    narrowest = min(layout.saved_bytes, layout.result_bytes)
    while -(-n1 // layout.rows) < tiles:
        smaller = layout._replace(turns=layout.turns // 2)
        if not smaller.turns or smaller.rows < least_rows or smaller.tile * narrowest % NARROWEST:
            break
        layout = smaller
    return layout
