"""What a kernel takes of a multiprocessor, and how many of its blocks fit on one: known without a GPU."""

import re
from typing import Any, NamedTuple

from normlab.engine.compile.offline import compile_cubin
from normlab.engine.compile.signatures import kinds_of_types


class Resources(NamedTuple):
    """Registers a thread, static shared bytes a block, local bytes a thread, and bytes of spills a thread."""

    registers: int
    shared_bytes: int
    local_bytes: int
    spill_stores: int
    spill_loads: int


class Occupancy(NamedTuple):
    """Blocks and warps that a multiprocessor holds at a time, and the share of the warps it could hold."""

    blocks: int
    warps: int
    fraction: float


class _Multiprocessor(NamedTuple):
    warps: int
    blocks: int
    shared_bytes: int  # of all blocks together; one block has RESERVED less


# CUDA C++ Programming Guide, table of technical specifications per compute capability.
MULTIPROCESSORS = {
    (8, 0): _Multiprocessor(64, 32, 164 * 1024),
    (9, 0): _Multiprocessor(64, 32, 228 * 1024),
}
SMALLEST_SHARED = 99 * 1024
REGISTERS = 65536  # a multiprocessor, in PARTITIONS equal parts, each with its own warps
PARTITIONS = 4
REGISTER_UNIT = 256  # registers are given to a warp in such units
SHARED_UNIT = 128  # and shared memory to a block in these bytes,
RESERVED = 1024  # beside what the system keeps for itself a block


def resources(kernel: Any, types: tuple, cc: tuple[int, int] = (9, 0)) -> Resources:
    """What the assembler says a kernel takes.

    Args:
        kernel, types, cc: as for `compile_ptx`.
    """
    log = compile_cubin(kernel, kinds_of_types(types), cc).log

    def number(pattern: str, otherwise: int | None = None) -> int:
        found = re.search(pattern, log)
        if found is None and otherwise is None:
            raise RuntimeError(f"nvJitLink's log does not say {pattern!r}:\n{log}")
        return otherwise if found is None else int(found[1])  # type: ignore[return-value]  # not both are None

    return Resources(
        registers=number(r"Used (\d+) registers"),
        shared_bytes=number(r"(\d+) bytes smem", otherwise=0),
        local_bytes=number(r"(\d+) bytes stack frame"),
        spill_stores=number(r"(\d+) bytes spill stores"),
        spill_loads=number(r"(\d+) bytes spill loads"),
    )


def block_shared_bytes(cc: tuple[int, int]) -> int:
    """Shared memory that one block may have, static and dynamic together; of an unknown GPU, the least."""
    return MULTIPROCESSORS[cc].shared_bytes - RESERVED if cc in MULTIPROCESSORS else SMALLEST_SHARED


def occupancy(registers: int, shared_bytes: int, threads: int, cc: tuple[int, int] = (9, 0)) -> Occupancy:
    """How many blocks of a kernel a multiprocessor holds.

    The least of what its warps, its blocks, its registers and its shared memory allow. A warp's registers are rounded
    up to REGISTER_UNIT and come from one of the PARTITIONS; a block's shared memory, RESERVED added, is rounded up to
    SHARED_UNIT. Source: the formulas of NVIDIA's cuda_occupancy.h, for these compute capabilities.

    Args:
        registers: a thread.
        shared_bytes: a block, static and dynamic together.
        threads: a block.
        cc: compute capability; one of MULTIPROCESSORS.

    >>> occupancy(registers=48, shared_bytes=1056, threads=128)
    Occupancy(blocks=10, warps=40, fraction=0.625)
    """
    if cc not in MULTIPROCESSORS:
        known = ", ".join(f"{major}.{minor}" for major, minor in MULTIPROCESSORS)
        raise ValueError(f"the limits of compute capability {cc[0]}.{cc[1]} are not known here; known: {known}")
    limits = MULTIPROCESSORS[cc]
    warps = -(-threads // 32)
    warp_registers = _up(32 * registers, REGISTER_UNIT)
    block_bytes = _up(shared_bytes + RESERVED, SHARED_UNIT)
    # A launch is refused by a check that thinks of a block's warps as spread evenly over the partitions.
    refused = (
        not 1 <= threads <= 1024
        or _up(warps, PARTITIONS) * warp_registers > REGISTERS
        or block_bytes > limits.shared_bytes
    )
    blocks = 0
    if not refused:
        resident_warps = PARTITIONS * (REGISTERS // PARTITIONS // warp_registers)
        blocks = min(limits.warps // warps, limits.blocks, resident_warps // warps, limits.shared_bytes // block_bytes)
    return Occupancy(blocks, blocks * warps, blocks * warps / limits.warps)


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
