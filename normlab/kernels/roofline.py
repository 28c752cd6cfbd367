"""Compute what a kernel should take before it has run: the arithmetic of the steps' docstrings as functions.

The functions say how many of its blocks a multiprocessor holds and what limits that (by `engine.occupancy`), how many
operations it does per byte, what time that means at best, how evenly its blocks fill the GPU, and which share of their
reads L2 serves. `normlab.bench.product` and the tutorials call them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from normlab.engine import Occupancy, occupancy
from normlab.kernels.plan import Device

FMA_LANES = {(8, 0): 64, (9, 0): 128}  # float32 multiply-adds a multiprocessor finishes in a clock
Capability = tuple[int, int]


@dataclass(frozen=True)
class Gpu(Device):
    """A device whose bandwidth is known, and its highest clock in Hz, which a GPU at its power limit does not keep."""

    bandwidth: float = 0.0
    clock: float = 0.0

    @property
    def peak(self) -> float:
        """Return float32 operations per second, two per multiply-add, without the tensor cores."""
        return peak(self.multiprocessors, self.clock, self.capability)

    @property
    def ridge(self) -> float:
        """Return the operations per byte below which memory limits a kernel, and above which arithmetic does."""
        return self.peak / self.bandwidth


def peak(multiprocessors: int, clock: float, capability: Capability) -> float:
    """Return the float32 operations per second of so many multiprocessors at this clock.

    Raises:
        ValueError: a compute capability that is not among FMA_LANES.
    """
    if capability not in FMA_LANES:
        known = ", ".join(f"{major}.{minor}" for major, minor in FMA_LANES)
        raise ValueError(f"the lanes of compute capability {capability[0]}.{capability[1]} are not known here: {known}")
    # two operations per multiply-add
    return 2 * multiprocessors * FMA_LANES[capability] * clock


H200 = Gpu(**vars(Device.named("h200")), clock=1.98e9)
A100 = Gpu(**vars(Device.named("a100")), clock=1.41e9)


class Residency(NamedTuple):
    """Blocks that a multiprocessor holds, and what binds their number: "threads", "registers" or "shared memory"."""

    occupancy: Occupancy
    bound_by: str


def residency(registers: int, shared_bytes: int, threads: int, capability: Capability = (9, 0)) -> Residency:
    """Return `engine.occupancy`, and which of the three is the scarcest; of several, the first in the order above.

    >>> residency(registers=128, shared_bytes=8320, threads=256)
    Residency(occupancy=Occupancy(blocks=2, warps=16, fraction=0.25), bound_by='registers')
    """
    # each resource alone, with next to nothing taken of the other two
    alone = {
        "threads": occupancy(1, 0, threads, capability),
        "registers": occupancy(registers, 0, threads, capability),
        "shared memory": occupancy(1, shared_bytes, threads, capability),
    }
    found = occupancy(registers, shared_bytes, threads, capability)
    return Residency(found, min(alone, key=lambda name: alone[name].blocks))


def product_operations(m: int, n: int, k: int) -> int:
    """Return the operations of (M, K) times (K, N): a multiplication and an addition for each of M N K pairs."""
    return 2 * m * n * k


def product_bytes(m: int, n: int, k: int, added: bool = False) -> int:
    """Return the least bytes that a float32 product moves: A and B in, the result out, and C in where it is `added`."""
    return 4 * (m * k + k * n + m * n * (1 + added))


def tile_intensity(rows: int, columns: int) -> float:
    """Return the operations per byte of A and B if a tile of C is computed from one copy of its rows and columns.

    The tile may be a thread's in registers, read from shared memory, or a block's in shared memory, read from L2.

    >>> tile_intensity(1, 1), tile_intensity(8, 8), tile_intensity(128, 128)
    (0.25, 2.0, 32.0)
    """
    return 2 * rows * columns / (4 * (rows + columns))


def roofline(operations: float, moved: float, gpu: Gpu) -> float:
    """Return the least seconds: those of the arithmetic or those of the memory, whichever are more."""
    # the larger one, not the sum: both run at the same time
    return max(operations / gpu.peak, moved / gpu.bandwidth)


class Waves(NamedTuple):
    """A grid in units of what the GPU holds at a time, the rounds that this takes, and the share of them it is busy."""

    full: float
    rounds: int
    busy: float


def waves(blocks: int, at_once: int) -> Waves:
    """Of a grid of equal blocks, `at_once` of which run at the same time; the last round may be nearly empty.

    >>> waves(blocks=330, at_once=264)
    Waves(full=1.25, rounds=2, busy=0.625)
    """
    full = blocks / at_once
    # all blocks take the same time, so the last round takes as long as a full one
    return Waves(full, ceil(full), full / ceil(full))


Place = Callable[[int, int, int], tuple[int, int]]  # (block, down, across) -> (row, column)


def l2_hit(rows: int, columns: int, down: int, across: int, at_once: int, place: Place) -> float:
    """The share of what a wave of blocks reads of A and B that another block of it has read, or reads, too.

    They go along K side by side, and what one of them fetches the others find in L2: of a step's rows and columns only
    the first copy comes from memory. As long as L2 holds a few steps, whatever the size of the matrices, and as long as
    they stay side by side: measured on an H200 at 4096 and 8192 (record l2_h200), step 8 comes within 0.01 of it, step
    10 within 0.03, but step 9, whose blocks drift apart, hits 0.86 and 0.75 where 0.92 and 0.87 are expected.

    Args:
        rows, columns: of a block's tile. down, across: the grid, in blocks. at_once: blocks of the first wave.
        place: where a block stands, such as `stages.lanes.blocks_in_rows.py_func`.
    """
    # only the first wave: later ones are not in step with each other, so which blocks meet is not known
    where = [place(block, down, across) for block in range(min(at_once, down * across))]
    # the first copy of each row and column of tiles comes from memory, every other one from L2
    distinct = len({row for row, _ in where}) * rows + len({column for _, column in where}) * columns
    return 1 - distinct / (len(where) * (rows + columns))
