"""Find the loops of a function in its instructions: every jump back ends a loop."""

import dis
from functools import cache
from types import CodeType

# What makes threads wait for each other and lets them see each other's writes. Shuffles and votes are missing, because
# CUDA promises no order in memory for them. Names are compared whole: `copy_async` ends in "sync" and is no barrier.
BARRIERS = {"syncthreads", "syncthreads_count", "syncthreads_and", "syncthreads_or", "syncwarp"}
BARRIERS |= {"team_sync", "cluster_sync", "sync", "grid_sync"}


@cache
def loops_of(code: CodeType) -> list[tuple[range, bool]]:
    """Return the lines of each loop, the smallest loop first, and whether a barrier is named inside it."""
    lines = [position[0] for position in code.co_positions()]
    instructions = list(dis.get_instructions(code))
    ends: dict[int, int] = {}  # where a loop begins → its last jump back; a `continue` is an earlier one
    for instruction in instructions:
        target = instruction.argval
        # A jump to an earlier instruction, to the top of a loop. `argval` is the target's offset, resolved by `dis`.
        if instruction.opcode in dis.hasjrel and target <= instruction.offset:
            ends[target] = max(instruction.offset, ends.get(target, 0))
    found = []
    for begin, end in ends.items():
        # Offsets count bytes, two per instruction, and `lines` has an entry per instruction.
        inside = [number for number in lines[begin // 2 : end // 2 + 1] if number is not None]
        names = [one.argval for one in instructions if begin <= one.offset <= end and isinstance(one.argval, str)]
        found.append((range(min(inside), max(inside) + 1), not BARRIERS.isdisjoint(names)))
    # The smallest loop around a line is the innermost.
    return sorted(found, key=lambda loop: len(loop[0]))


def in_one_loop(code: CodeType, one: int, other: int) -> bool:
    """Return whether a loop holds both lines."""
    return any(one in lines and other in lines for lines, _ in loops_of(code))


def loop_without_barrier(code: CodeType, line: int, barriers: list[int]) -> bool:
    """Return whether the innermost loop around `line` has no synchronisation, and none of the lines `barriers`."""
    for lines, synchronises in loops_of(code):
        if line in lines:
            return not synchronises and not any(barrier in lines for barrier in barriers)
    return False
