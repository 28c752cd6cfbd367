"""Count a kernel's registers and shared memory, and how many of its blocks fit on a multiprocessor, without a GPU."""

import re
from typing import Any, NamedTuple

from normlab.engine.compile.offline import Cubin, compile_cubin
from normlab.engine.compile.signatures import kinds_of_types


class Resources(NamedTuple):
    """Registers per thread, static shared bytes per block, local bytes per thread, and bytes of spills per thread."""

    registers: int
    shared_bytes: int
    local_bytes: int
    spill_stores: int
    spill_loads: int


class Occupancy(NamedTuple):
    """Blocks and warps resident on a multiprocessor, and the warps as a fraction of the multiprocessor's maximum."""

    blocks: int
    warps: int
    fraction: float


class _Multiprocessor(NamedTuple):
    warps: int
    blocks: int
    shared_bytes: int  # of all blocks together; one block can use RESERVED bytes less


# CUDA C++ Programming Guide, table of technical specifications per compute capability.
MULTIPROCESSORS = {
    (8, 0): _Multiprocessor(64, 32, 164 * 1024),
    (9, 0): _Multiprocessor(64, 32, 228 * 1024),
}
SMALLEST_SHARED = 99 * 1024
REGISTERS = 65536  # per multiprocessor, in PARTITIONS equal parts; each warp belongs to one part
PARTITIONS = 4
REGISTER_UNIT = 256  # registers are allocated to a warp in multiples of this
SHARED_UNIT = 128  # shared memory is allocated to a block in multiples of this many bytes
RESERVED = 1024  # bytes of shared memory per block that the system keeps for itself


def resources(kernel: Any, types: tuple, cc: tuple[int, int] = (9, 0)) -> Resources:
    """Return the registers, shared memory and spills that the assembler reports for a kernel.

    Args:
        kernel, types, cc: as for `compile_ptx`.
    """
    return resources_of(compile_cubin(kernel, kinds_of_types(types), cc))


def resources_of(cubin: Cubin) -> Resources:
    """Return what the assembler's log of a cubin reports."""

    def number(pattern: str, otherwise: int | None = None) -> int:
        found = re.search(pattern, cubin.log)
        if found is None and otherwise is None:
            raise RuntimeError(f"nvJitLink's log does not say {pattern!r}:\n{cubin.log}")
        return otherwise if found is None else int(found[1])  # type: ignore[return-value]  # not both are None

    return Resources(
        registers=number(r"Used (\d+) registers"),
        shared_bytes=number(r"(\d+) bytes smem", otherwise=0),
        local_bytes=number(r"(\d+) bytes stack frame"),
        spill_stores=number(r"(\d+) bytes spill stores"),
        spill_loads=number(r"(\d+) bytes spill loads"),
    )


def block_shared_bytes(cc: tuple[int, int]) -> int:
    """Return the most shared bytes, static plus dynamic, that a block may use; the smallest limit for an unknown cc."""
    return MULTIPROCESSORS[cc].shared_bytes - RESERVED if cc in MULTIPROCESSORS else SMALLEST_SHARED


def occupancy(registers: int, shared_bytes: int, threads: int, cc: tuple[int, int] = (9, 0)) -> Occupancy:
    """Return how many blocks of a kernel a multiprocessor holds at a time.

    Four limits count, and the smallest decides: warps, blocks, registers and shared memory. A warp's registers are
    rounded up to REGISTER_UNIT and come from one of the PARTITIONS. RESERVED is added to a block's shared memory, and
    the sum is rounded up to SHARED_UNIT. Source: the formulas of NVIDIA's cuda_occupancy.h.

    Args:
        registers: per thread.
        shared_bytes: per block, static and dynamic together.
        threads: per block.
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
    # The driver checks a launch as if a block's warps were spread evenly over the partitions.
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
