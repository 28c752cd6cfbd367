"""Define a request: the accesses of one warp's lanes by one memory instruction."""

from bisect import bisect_right
from dataclasses import dataclass

from normlab.sim.language.source import Line
from normlab.sim.tracing.model import SECTOR, WORD, conflicts, sectors, wavefronts

OPERATIONS = {"ld": "load", "st": "store", "atom": "atomic", "ldgsts": "asynchronous copy"}


@dataclass(frozen=True)
class Request:
    """The lanes of a warp at one dynamic occurrence of one load, store, atomic, or side of an asynchronous copy.

    `operation`: one of `OPERATIONS`; `space`: "global", "shared", or "dshared" for shared memory of another block of
    the cluster; `size`: bytes per lane; `lanes`: the active lanes; `addresses`: the address that each active lane
    accesses, in the same order; `origin`: the address of the array.
    """

    line: Line
    operation: str
    space: str
    array: str
    size: int
    origin: int
    block: tuple[int, int, int]
    warp: int
    lanes: tuple[int, ...]
    addresses: tuple[int, ...]

    @property
    def sectors(self) -> int:
        """32-byte sectors touched."""
        # Computed when asked for, as the costs below: a trace that keeps every request of a line keeps only addresses.
        return sectors(self.addresses, self.size)

    @property
    def wavefronts(self) -> int:
        """Passes through the banks of shared memory."""
        return wavefronts(self.lanes, self.addresses, self.size, loads=self.operation == "ld")

    @property
    def conflicts(self) -> int:
        """Wavefronts above the fewest possible."""
        return conflicts(self.lanes, self.addresses, self.size, loads=self.operation == "ld")

    @property
    def cost(self) -> int:
        """Wavefronts of the block's own shared memory, sectors of any other."""
        # What a request costs the banks of another block is not modelled.
        return self.wavefronts if self.space == "shared" else self.sectors

    def sectors_of(self, position: int) -> range:
        """Return the numbers of the sectors, counted from the array's first, that the lane at `position` touches."""
        # Sectors begin at multiples of 32 bytes of memory, not of the array, which may begin in the middle of one.
        start = self.addresses[position] - self.origin // SECTOR * SECTOR
        return range(start // SECTOR, (start + self.size - 1) // SECTOR + 1)

    def words_of(self, position: int) -> range:
        """Return the numbers of the 4-byte words, counted from the array's first, that the lane there touches."""
        # A shared array begins at bank 0, so a word's number modulo 32 is its bank.
        start = self.addresses[position] - self.origin
        return range(start // WORD, (start + self.size - 1) // WORD + 1)

    def __str__(self) -> str:
        """Return the request, its block and warp, and its cost in words."""
        cost = f"{self.cost} {'wavefronts' if self.space == 'shared' else 'sectors'}"
        return (
            f"{self.space} {OPERATIONS[self.operation]} of {self.array!r}, block {self.block}, warp {self.warp}, "
            f"{len(self.lanes)} lanes of {self.size} bytes: {cost}\n  {self.line}"
        )


class Kept:
    """The requests of one operation on one array at one line that a trace keeps: first and costliest, or all."""

    __slots__ = ("_cost", "_times", "all", "began", "first", "worst")

    def __init__(self, everything: bool):
        """Keep the first and the costliest, and the rest if `everything`."""
        self.first: Request | None = None
        self.worst: Request | None = None
        self.all: list[Request] | None = [] if everything else None
        self.began: tuple = ()  # when the first was made
        self._cost: tuple = ()  # of the costliest, negative, and when it was made
        self._times: list[tuple] = []  # of all

    def add(self, request: Request, when: tuple = ()) -> None:
        """Keep `request` if it is the first or the costliest so far, or if all are kept.

        when: numbers that order it among the others; requests with the same numbers are added in the order of time.
        """
        if self.first is None or when < self.began:
            self.first, self.began = request, when
        # Of equal costs the first is kept, so that every schedule's picture is the earliest.
        cost = -request.cost, when
        if self.worst is None or cost < self._cost:
            self.worst, self._cost = request, cost
        if self.all is not None:
            # To the right of equal times, which keeps requests without a time in the order in which they come.
            place = bisect_right(self._times, when)
            self._times.insert(place, when)
            self.all.insert(place, request)
