"""Lay out tiles of short rows: which lanes share a row, and how many rows a warp takes together.

Which rows come as tiles is said in `forward.short_rows` and `backward.short_rows.tiles`.
"""

from typing import NamedTuple

from normlab.kernels.words import counted
from normlab.stages.vector import WARP

ACCUMULATOR_BYTES = 4  # the kernel computes in float32
# Per lane and row at most, except in `backward.short_rows.tiles.columns_apart`: of each, registers hold two sums,
# gamma, beta and 1 / gamma from row to row.
ELEMENTS = 8
WARPS = 8  # per block
# Pipeline stages per warp: one is read while the other one is filled. Three smaller ones took the backward 1 to 3 %
# longer.
STAGES = 2
# Blocks that a multiprocessor must have registers for, if its shared memory holds as many: three took 2 to 4 % longer.
RESIDENT, RESIDENT_BYTES = 2, 113 * 1024
ALIGNED_ROWS = 8  # rows of any length that are whole vectors of 16 bytes together


class Reason(NamedTuple):
    """Why rows of up to so many columns are taken as tiles."""

    columns_up_to: int
    why: str


class TileLayout(NamedTuple):
    """How one warp, or all warps of a block, take a tile of rows.

    A lane group is the lanes that share a row. Each has `elements` columns: neighbouring ones in the backward, every so
    many-th vector of the row in the forward.
    """

    n2: int
    lanes: int  # per row, a power of two
    vectors: int  # per lane and row
    width: int  # elements of such a vector; it divides n2
    turns: int  # rows of a tile per lane group, if one warp takes it
    together: int  # elements per copy between global and shared memory
    saved_bytes: int  # per element of the saved array
    grad_bytes: int  # per element of grad_output; 0 in the forward
    statistics: int  # arrays with a number per row: invvar, and mean if it is needed
    warps: int = WARPS  # per block
    warps_per_tile: int = 1  # or all of the block's, each with an equal part of the turns

    @property
    def elements(self) -> int:
        """Return the elements of a row per lane; the last lanes may have fewer."""
        return self.vectors * self.width

    @property
    def filled(self) -> int:
        """Return how many vectors of a row every lane has."""
        return max(0, min(self.vectors, (self.n2 - (self.lanes - 1) * self.elements) // self.width))

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
    def results_at(self) -> int:
        """Return the offset of the tiles' results, in accumulators."""
        return self.statistics_at + self.tiles_at_once * STAGES * self.rows * self.statistics

    @property
    def results(self) -> int:
        """Return how many accumulators there are for results, and at the end for two sums of each column per warp."""
        return max(self.tiles_at_once * self.tile, 2 * self.warps * self.n2)

    @property
    def shared_bytes(self) -> int:
        """Return the dynamic shared memory of a block."""
        return ACCUMULATOR_BYTES * (self.results_at + self.results)

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
            f"{counted(self.vectors, 'vector')} of {counted(self.width, 'element')} per lane",
            f"{counted(STAGES, 'stage')} per {team}, filled by copies of {counted(self.together, 'element')}",
        ]


def lanes_for(n2: int) -> int:
    """Return the lanes that share a row: a power of two, as few as give each at most ELEMENTS elements."""
    return 1 << (-(-n2 // ELEMENTS) - 1).bit_length()


def columns_per_lane(n2: int) -> int:
    """Return how many columns of a row a lane has: as few as the row's lanes can hold it with."""
    return -(-n2 // lanes_for(n2))


def tile_for(
    n2: int, full: int, saved_bytes: int, grad_bytes: int, statistics: int, stage_bytes: int, each: int
) -> TileLayout:
    """Return the layout of rows of n2 columns in stages of about so many bytes, with copies of `full` elements.

    full: elements of the widest dtype that are 16 bytes. each: columns per lane, for as many lanes as have so many.
    Otherwise as in the layout. n1 is no argument: a row's bits are the same in every batch.
    """
    lanes = lanes_for(n2)
    width = min(each & -each, n2 & -n2, full)  # each lane's part of each row in shared memory begins with such a vector
    a_row = n2 * (saved_bytes + grad_bytes) + ACCUMULATOR_BYTES * statistics
    rows = max(ALIGNED_ROWS, WARP // lanes)
    while 2 * rows * a_row <= stage_bytes:
        rows *= 2
    turns = rows * lanes // WARP
    return TileLayout(n2, lanes, each // width, width, turns, full, saved_bytes, grad_bytes, statistics)
