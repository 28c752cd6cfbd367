"""Compute what one memory instruction of a warp costs: sectors of global memory, wavefronts of shared memory.

Pure functions of the addresses that the active lanes gave. `tests/hardware` compares them with the counters of an
H200.
"""

from collections.abc import Iterable, Sequence

SECTOR = 32  # bytes: what L1 and L2 move
BANKS = 32
WORD = 4  # bytes a bank gives in one wavefront


def units(addresses: Iterable[int], size: int, unit: int) -> set[int]:
    """Return the numbers of the `unit`-byte units that accesses of `size` bytes at `addresses` touch."""
    # An aligned access whose size divides the unit lies within one unit: the usual case, without the inner loop.
    if unit % size == 0 and all(address % size == 0 for address in addresses):
        return {address // unit for address in addresses}
    return {n for address in addresses for n in range(address // unit, (address + size - 1) // unit + 1)}


def sectors(addresses: Sequence[int], size: int) -> int:
    """Return how many 32-byte sectors a request of `size` bytes per lane touches."""
    return len(units(addresses, size, SECTOR))


def lanes_together(lanes: Sequence[int], addresses: Sequence[int], size: int, loads: bool) -> int:
    """Return how many neighbouring lanes (active or not) the shared memory serves in one phase: 32, 16 or 8."""
    # A wavefront carries 128 bytes, so lanes of 8 bytes are served by half warps, lanes of 16 bytes by quarter warps.
    together = 32 if size <= WORD else 32 * WORD // size
    wanted = dict(zip(lanes, addresses, strict=True))
    # If every lane loads the same address as lane ^ 1, or every lane the same as lane ^ 2, the lanes need half as many
    # bytes, and twice as many lanes are served in a phase. Stores do not share phases in this way. Measured on an H200,
    # on the patterns of `tests/hardware/shared_kernels.py`.
    # A lane that takes no part agrees with any: `get` gives the lane's own address for it.
    agree = (all(wanted.get(lane ^ other, at) == at for lane, at in wanted.items()) for other in (1, 2))
    return 2 * together if loads and size > WORD and any(agree) else together


def phases(lanes: Sequence[int], addresses: Sequence[int], size: int, loads: bool = True) -> list[list[int]]:
    """Return the positions (in `lanes`) that the shared memory serves together, phase by phase."""
    together = lanes_together(lanes, addresses, size, loads)
    found: dict[int, list[int]] = {}
    for position, lane in enumerate(lanes):
        # By the lane's number and not by its position: an inactive lane keeps its place in its phase.
        found.setdefault(lane // together, []).append(position)
    return list(found.values())


def wavefronts(lanes: Sequence[int], addresses: Sequence[int], size: int, loads: bool = True) -> int:
    """Return in how many passes the 32 banks serve a request of `size` bytes per lane.

    In a pass each bank gives one 4-byte word, to as many lanes as want it (broadcast, multicast); lanes that touch
    parts of one word, such as two float16, share it too.
    """
    return sum(
        _passes(units([addresses[position] for position in together], size, WORD))
        for together in phases(lanes, addresses, size, loads)
    )


def _passes(words: set[int]) -> int:
    banks = [0] * BANKS
    for word in words:
        # `words` is a set: a word that many lanes want is given to all of them in one pass.
        banks[word % BANKS] += 1
    return max(banks)


def conflicts(lanes: Sequence[int], addresses: Sequence[int], size: int, loads: bool = True) -> int:
    """Return the wavefronts above the fewest possible, one for each phase."""
    return wavefronts(lanes, addresses, size, loads) - len(phases(lanes, addresses, size, loads))
