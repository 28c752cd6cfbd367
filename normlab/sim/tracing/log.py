"""Keep the log of a launch's accesses, and group the accesses into requests with NumPy.

A lane that accesses memory appends four integers; everything else is computed for thousands of accesses at once. Two
accesses belong to one request if their sites and paths agree. A site is an instruction with the calls that led to it; a
path belongs to one warp (language/paths.py). Without readable source a lane may come to the same site and path again,
because the turns of a loop have no marks: then its second access belongs to another request.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from normlab.sim.tracing.model import BANKS, SECTOR, WORD

LONG = 1 << 18  # integers in a Python list
FIELDS = 4  # of an event: site, path, slot (32 times the warp's number + lane), address


@dataclass
class Groups:
    """Requests, numbered: the `site` of each, how many `lanes` it has; `group` gives each event's request.

    `first`: the order in time, as the position of each request's first event or as a rank. `when`: a row of numbers for
    each request that orders it among those of other Groups, too; None if these are counted in the order of time.
    """

    site: np.ndarray
    lanes: np.ndarray
    group: np.ndarray
    first: np.ndarray
    when: np.ndarray | None = None

    def part(self, chosen: np.ndarray) -> tuple[np.ndarray, "Groups"]:
        """Return the numbers of the requests whose events are `chosen`, and these requests as Groups, numbered anew."""
        # Whole requests: `chosen` depends on the site, and a request has one site. So `lanes` stays what it is.
        first, group = _numbered(self.group[chosen])
        numbers = self.group[chosen][first]
        return numbers, Groups(self.site[numbers], self.lanes[numbers], group, first)

    @cached_property
    def _by_request(self) -> tuple[np.ndarray, np.ndarray]:
        # Stable, so that the events of a request stay in the order in which its lanes ran.
        return np.argsort(self.group, kind="stable"), np.cumsum(self.lanes)

    def events(self, number: int, table: np.ndarray) -> np.ndarray:
        """Return the rows of `table` that belong to request `number`, in the order of time."""
        order, ends = self._by_request
        return table[order[ends[number] - self.lanes[number] : ends[number]]]


class Log:
    """The accesses that are not yet grouped into requests. `append` takes the four integers of an access as a tuple."""

    def __init__(self) -> None:
        """Start empty."""
        self._events: list[int] = []  # the latest: no other way to note four integers is as quick
        self._packed: list[np.ndarray] = []  # those before
        self.append = self._events.extend

    def __len__(self) -> int:
        """Return the number of accesses."""
        return len(self._events) // FIELDS + sum(map(len, self._packed))

    def pack_if_long(self) -> None:
        """Move the latest accesses into a NumPy array if they are many, because it needs less memory."""
        if len(self._events) > LONG:
            self.pack()

    def pack(self) -> None:
        """Move the latest accesses into a NumPy array."""
        self._packed.append(np.array(self._events, np.int64).reshape(-1, FIELDS))
        # Cleared and not replaced: `append` is bound to this very list.
        self._events.clear()

    def take(self) -> np.ndarray:
        """Return the accesses as an (n, 4) array, and start again empty."""
        self.pack()
        packed, self._packed = self._packed, []
        return np.concatenate(packed)

    def put_back(self, table: np.ndarray) -> None:
        """Append the accesses `table`, (n, 4), which `take` has returned."""
        self._packed.append(table)


def grouped(table: np.ndarray) -> Groups:
    """Return the accesses `table`, (n, 4), grouped into requests."""
    site, path, lane = table[:, 0], table[:, 1], table[:, 2] % 32
    # One number for each (site, path): lanes that agree in both have executed one instruction together.
    first, group = _numbered(_pair(path, site))
    seen = np.zeros((len(first), 32), bool)
    seen[group, lane] = True
    if seen.sum() < len(table):  # some lane comes to a site and path again: its second visit is a second request
        first, group = _numbered(_pair(group, _occurrence(group * 32 + lane)))
    return Groups(site[first], np.bincount(group), group, first)


def _numbered(key: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each distinct key's first position, and the number of each entry's key; faster than np.unique."""
    order = np.argsort(key, kind="stable")  # NumPy's stable sort is fast here, because the log is made of ordered runs
    begins = _begins(key[order])
    group = np.empty(len(key), np.int64)
    group[order] = np.cumsum(begins) - 1
    return np.minimum.reduceat(order, np.flatnonzero(begins)), group


def _begins(ordered: np.ndarray) -> np.ndarray:
    """Return for each entry of a sorted array whether it differs from the one before."""
    begins = np.empty(len(ordered), bool)
    begins[:1] = True
    np.not_equal(ordered[1:], ordered[:-1], out=begins[1:])
    return begins


def _different(values: np.ndarray) -> np.ndarray:
    ordered = np.sort(values, kind="stable")
    return ordered[_begins(ordered)]


def _occurrence(key: np.ndarray) -> np.ndarray:
    """Return for each entry how many entries before it are equal to it."""
    order = np.argsort(key, kind="stable")
    begins = np.flatnonzero(_begins(key[order]))
    lengths = np.diff(np.r_[begins, len(key)])
    rank = np.empty(len(key), np.int64)
    rank[order] = np.arange(len(key)) - np.repeat(begins, lengths)
    return rank


def sectors_of(groups: Groups, table: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Return how many 32-byte sectors each request touches; `size`: bytes of each access, 32 at most."""
    first, last = table[:, 3] // SECTOR, (table[:, 3] + size - 1) // SECTOR
    group = groups.group
    if (first != last).any():  # an access that crosses a border touches two sectors, never more: size <= 32
        first, group = np.concatenate([first, last]), np.tile(group, 2)
    return _distinct(group, first, len(groups.lanes))


def wavefronts_of(
    groups: Groups, table: np.ndarray, size: np.ndarray, loads: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return each request's passes through the banks of shared memory, and its phases, the fewest possible.

    `loads`: whether each access is one. The rules are those of `model.phases` and `model.wavefronts`.
    """
    count, lane, address = len(groups.lanes), table[:, 2] % 32, table[:, 3]
    # One entry for each word that a lane touches.
    steps = range(0, int(size.max()), WORD)
    inside = [size > step for step in steps]
    word = np.concatenate([(address[keep] + step) // WORD for step, keep in zip(steps, inside, strict=True)])
    word -= word.min() // BANKS * BANKS  # small numbers, so that `_pair` does not overflow; each bank stays the same
    # How many neighbouring lanes are served together, and with that the phase of each entry, 4 phases per request.
    together = np.where(size <= WORD, 32, 32 * WORD // np.maximum(size, WORD))
    # Loads of 8 and 16 bytes whose lanes agree in pairs go in half the phases: measured on an H200
    # (`model.lanes_together`).
    wide = loads & (size > WORD)
    if wide.any():
        together[wide & _halved(groups, lane, address)[groups.group]] *= 2
    numbers = lane // together + 4 * groups.group
    phase = np.concatenate([numbers[keep] for keep in inside])

    pairs = _different(_pair(phase, word))  # lanes that share a word share its pass
    width = int(word.max()) + 1
    # A bank gives one word per pass: a phase takes as many passes as its busiest bank has different words.
    banks = np.bincount(pairs // width * BANKS + pairs % width % BANKS, minlength=4 * count * BANKS)
    passes = banks.reshape(count, 4, BANKS).max(axis=2)
    return passes.sum(axis=1), (passes > 0).sum(axis=1)


def _halved(groups: Groups, lane: np.ndarray, address: np.ndarray) -> np.ndarray:
    """Return for each request whether its lanes load the same addresses in pairs."""
    wanted = np.full((len(groups.lanes), 32), -1)  # -1: the lane does not take part, and agrees with any
    wanted[groups.group, lane] = address
    agree = np.zeros(len(wanted), bool)
    for other in (1, 2):
        partner = wanted[:, np.arange(32) ^ other]
        agree |= ((wanted == partner) | (wanted < 0) | (partner < 0)).all(axis=1)
    return agree


def _pair(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return a number for each pair of entries, which tells pairs apart; `other` has no negative entry."""
    # Exact unless the product is beyond 64 bits, where NumPy wraps it around. That happens only with paths, which are
    # hashes of 64 bits: two pairs may then get one number by chance, as two paths may.
    return one * (int(other.max()) + 1) + other


def _distinct(group: np.ndarray, value: np.ndarray, count: int) -> np.ndarray:
    """Return how many different values each of `count` groups has."""
    value = value - value.min()
    pairs = _different(_pair(group, value))
    return np.bincount(pairs // (int(value.max()) + 1), minlength=count)
