"""Compute the pictures of a request: which lane accesses which bytes of which sector, and which words of which bank.

Both matplotlib (requests.py) and the HTML report draw from these numbers.
"""

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from normlab.sim.tracing.model import BANKS, SECTOR, lanes_together, phases
from normlab.sim.tracing.pictures.words import count, subject
from normlab.sim.tracing.request import Request


class Piece(NamedTuple):
    """`size` bytes, from byte `start`, of the sector in `column`, which `lane` accesses."""

    lane: int
    column: int
    start: int
    size: int


@dataclass(frozen=True)
class SectorMap:
    """Which lane accesses which bytes of which 32-byte sector.

    `sectors`: the numbers, counted from the array's first, of the sectors touched, one per column. `used`: (column,
    first byte, bytes) of every run of bytes that some lane wants.
    """

    sectors: list[int]
    pieces: list[Piece]
    used: list[tuple[int, int, int]]

    @property
    def numbers(self) -> str:
        """Say in words what the request costs."""
        return (
            f"{count(len(self.sectors), 'sector')}, {self.used_bytes:,} of {self.moved_bytes:,} bytes used "
            f"({self.used_bytes / self.moved_bytes:.0%})"
        )

    @property
    def moved_bytes(self) -> int:
        """Return the bytes of all sectors touched."""
        return SECTOR * len(self.sectors)  # a sector moves whole, however few of its bytes are wanted

    @property
    def used_bytes(self) -> int:
        """Return the bytes of the sectors that at least one lane accesses."""
        return sum(size for _, _, size in self.used)


def sector_map(request: Request) -> SectorMap:
    """Return the map of a request of global memory or of another block's shared memory; else raise ValueError."""
    if request.space == "shared":
        raise ValueError(f"a sector map shows global memory, and this is a {subject(request)}; draw_banks shows it")
    # Counted from the sector in which the array begins: small numbers, whatever its address.
    base = request.origin // SECTOR * SECTOR
    sectors = sorted({sector for position in range(len(request.lanes)) for sector in request.sectors_of(position)})
    # Only touched sectors get a column: lanes may be megabytes apart.
    column = {sector: number for number, sector in enumerate(sectors)}
    pieces = []
    for position, (lane, address) in enumerate(zip(request.lanes, request.addresses, strict=True)):
        begin, end = address - base, address - base + request.size
        # An access that crosses a border of sectors is cut there, into a piece of each.
        for sector in request.sectors_of(position):
            first, last = max(begin, SECTOR * sector), min(end, SECTOR * (sector + 1))
            pieces.append(Piece(lane, column[sector], first - SECTOR * sector, last - first))
    return SectorMap(sectors, pieces, _runs(pieces))


def _runs(pieces: list[Piece]) -> list[tuple[int, int, int]]:
    """Return the bytes of all pieces as runs without overlap."""
    runs: list[tuple[int, int, int]] = []
    # Bytes that several lanes want count once: the set holds each of them once.
    for byte in sorted({(piece.column, piece.start + n) for piece in pieces for n in range(piece.size)}):
        # Without a run yet, one that no byte continues: columns begin at 0.
        column, start, size = runs[-1] if runs else (-1, 0, 0)
        if byte == (column, start + size):
            runs[-1] = column, start, size + 1
        else:
            runs.append((*byte, 1))
    return runs


class Punch(NamedTuple):
    """A word of `bank` that `lane` accesses in `phase`.

    `turn`: how many other words of that bank go before it; `lanes`: how many lanes want this word; `contested`:
    whether lanes want other words of the bank, too.
    """

    lane: int
    bank: int
    phase: int
    turn: int
    lanes: int
    contested: bool


@dataclass(frozen=True)
class BankMap:
    """Which lane accesses which bank.

    `passes`: the wavefronts of each phase in which lanes are active; `lanes_per_phase`: 32, 16, 8 or fewer;
    `conflicts`: wavefronts above one per phase.
    """

    punches: list[Punch]
    passes: dict[int, int]  # by the number of the phase
    lanes_per_phase: int
    conflicts: int

    @property
    def numbers(self) -> str:
        """Say in words what the request costs."""
        wavefronts = sum(self.passes.values())
        return (
            f"{count(wavefronts, 'wavefront')}, the fewest possible {wavefronts - self.conflicts}: "
            f"{count(self.conflicts, 'bank conflict')}"
        )


def bank_map(request: Request) -> BankMap:
    """Return the punchcard of a request of shared memory; raises ValueError for one of global memory."""
    if request.space != "shared":
        raise ValueError(f"a bank map shows shared memory, and this is a {subject(request)}; draw_sectors shows it")
    punches: list[Punch] = []
    passes: dict[int, int] = {}
    lanes_per_phase = lanes_together(request.lanes, request.addresses, request.size, request.operation == "ld")
    # Phase by phase, because lanes of different phases cannot conflict: they are served one after the other anyway.
    for positions in phases(request.lanes, request.addresses, request.size, request.operation == "ld"):
        # From a lane, and not counted by the loop, because `phases` leaves out a phase without an active lane.
        phase = request.lanes[positions[0]] // lanes_per_phase
        wanted = Counter(word for position in positions for word in request.words_of(position))
        # A bank gives one word per pass, so the words that are wanted of a bank queue up in it.
        queues: list[list[int]] = [[] for _ in range(BANKS)]
        for word in wanted:
            queues[word % BANKS].append(word)
        passes[phase] = max(map(len, queues))  # the busiest bank's: banks work side by side
        punches += [
            Punch(
                lane=request.lanes[position],
                bank=word % BANKS,
                phase=phase,
                turn=queues[word % BANKS].index(word),
                lanes=wanted[word],
                contested=len(queues[word % BANKS]) > 1,
            )
            for position in positions
            for word in request.words_of(position)
        ]
    return BankMap(punches, passes, lanes_per_phase, request.conflicts)
