"""Say in one sentence how to repair a finding, depending on the threads and lines involved."""

import ast
from functools import cache

from normlab.sim.language.source import source_of, tree_of
from normlab.sim.sanitizing.findings import Act

WARP, TEAM, BLOCK, CLUSTER, GRID = range(5)  # the smallest group that two threads have in common


def against_race(
    first: Act, second: Act, reach: int, next_turn: bool, in_loop: bool, signal: tuple[Act, int] | None
) -> str:
    """Return how to order two racing accesses, or how to make them harmless.

    `reach`: the smallest group that holds both threads, such as WARP or BLOCK. `next_turn`: a barrier stands between
    the two lines, so the second access belongs to the next turn of a loop. `in_loop`: both accesses are at one line, in
    a loop without a barrier. `signal`: the access that came first, and the line of the atomic by which its thread
    signals to the other thread; None if there is no such atomic.
    """
    at_once = first.line == second.line
    both = f"the {first.operation} at line {first.line} and the {second.operation} at line {second.line}"
    again, where = _in_the_next_turn(first, second) if next_turn else ("", "between them")
    both += again
    # Two atomics never race, so exactly one of the two accesses is one.
    if "atomic" in (first.operation, second.operation):
        plain = first if second.operation == "atomic" else second
        barrier = {GRID: "a grid sync", CLUSTER: "a cluster_sync"}.get(reach, "a barrier")
        return f"only one of {both} is an atomic: make the {plain.operation} one too, or put {barrier} between them"
    # A thread signals by an atomic that no fence precedes: the order is meant, and one fence makes it true. Between
    # blocks it must be the fence for the device: threadfence_block orders for the thread's own block only.
    if signal is not None:
        whom, fence = ("block", "threadfence") if reach >= CLUSTER else ("thread", "threadfence_block")
        told, line = signal
        return (
            f"no fence between the {told.operation} at line {told.line} and the atomic at line {line} that tells "
            f"another {whom} of it: put cuda.{fence}() there"
        )
    # No barrier inside a kernel orders two blocks of a plain launch, unless it is cooperative.
    if reach == GRID:
        return (
            f"nothing orders {both}, which are in two blocks: put them into two kernels, or a grid sync between them, "
            "or update the element by cuda.atomic"
        )
    # No barrier helps two threads that write at one line: they come to it in the same phase.
    if at_once and first.operation == second.operation:
        return f"two threads write the element at line {first.line}: let one of them write, or use cuda.atomic"
    if reach == CLUSTER:
        return f"nothing orders {both}, which are in two blocks of a cluster: put cluster_sync() {where}"
    # The cheapest barrier that holds both threads: syncwarp costs a few cycles, syncthreads stops all warps of the
    # block.
    barrier = {WARP: "cuda.syncwarp()", TEAM: "team_sync()"}.get(reach, "cuda.syncthreads()")
    if in_loop:
        return (
            f"no barrier in the loop around line {first.line}, where a thread reads in one turn what another writes in "
            f"the turn before: put {barrier} at the end of the loop's body, outside of any if"
        )
    if at_once:
        return (
            f"line {first.line} writes an element that another thread reads there: read into a variable, then "
            f"{barrier}, then write; or update the element by cuda.atomic"
        )
    # A barrier before the wait orders nothing: the data may arrive after it.
    if first.operation == "copy" and not next_turn:
        where = "after its wait_copies()"
    return f"no barrier between {both}: put {barrier} {where}"


def _in_the_next_turn(first: Act, second: Act) -> tuple[str, str]:
    """Return when the second access comes, and where a barrier orders the two.

    The loop that both lines stand in may be in a caller. Then the barrier stands after the first access's own loop.
    """
    if first.file != second.file or first.line is None or second.line is None:
        return " in the loop's next turn", "at the end of the loop's body"
    loops = [(begin, end) for begin, end in _loops(first.file) if begin < first.line <= end]
    around = [begin for begin, end in loops if begin < second.line <= end]
    if around:  # of the loops around both lines the innermost begins last
        return " in the loop's next turn", f"at the end of the body of the loop at line {max(around)}"
    if not loops:
        return " in the loop's next turn", "at the end of the loop's body"
    return " in the function's next call", f"after the loop at line {min(loops)[0]}, before the function returns"


@cache
def _loops(file: str | None) -> list[tuple[int, int]]:
    """Return the first and the last line of every loop of a file; none if its source cannot be read."""
    tree = tree_of(source_of(file or ""))
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For | ast.While)]
    return [(node.lineno, node.end_lineno or node.lineno) for node in loops]


def against_copy(copy: Act, other: Act) -> str:
    """Return what to do about an access to the target of an asynchronous copy that is still under way."""
    # Only the thread that started a copy can wait for it: another one needs a barrier after that thread's wait.
    at = f"the {other.operation} at line {other.line}"
    if copy.block == other.block and copy.thread == other.thread:
        return (
            f"the copy at line {copy.line} may be under way still at {at} by the same thread: put commit_copies() and "
            "a wait_copies() that covers it between them"
        )
    return (
        f"the copy at line {copy.line} may be under way still at {at}: let the thread that started it commit_copies() "
        "and wait_copies(), and put a barrier between that and the other access"
    )


def against_end(access: Act, owner: tuple[int, int, int]) -> str:
    """Return what to do about an access to the shared memory of a block of the cluster that may have ended."""
    return (
        f"block {owner} may have ended, and its shared memory with it, before the {access.operation} at line "
        f"{access.line}: put cluster_sync() after the last access to another block's memory, and let all blocks come "
        "to it"
    )


def against_beginning(access: Act, owner: tuple[int, int, int]) -> str:
    """Return what to do about an access to the shared memory of a block of the cluster that may not have begun."""
    return (
        f"block {owner} may not have begun, and its shared memory not be there, at the {access.operation} at line "
        f"{access.line}: put cluster_sync() before the first access to another block's memory"
    )


def against_garbage(name: str, space: str, operation: str, line: int | None) -> str:
    """Return what to do about a read of an element that no thread had written."""
    # Global memory has contents except in arrays that the caller of `sanitize` has named in `uninitialized`.
    if space == "global":
        return (
            f"nothing had written this element of {name!r} before the {operation} at line {line}, and the array came "
            "without contents: write it first, or fill the array before the launch"
        )
    return (
        f"nothing had written this element of {name!r} before the {operation} at line {line}, and {space} memory "
        "begins as garbage: write it first"
    )


def against_index(kind: str, name: str, part: bool, axis: int, position: int, extent: int) -> str:
    """Return what to do about an index that is not inside its dimension of an array, or of a `part` of it."""
    # A part has no name of its own, and the shape of `name` is that of the whole array.
    extent_as = f"the part's shape[{axis}]" if part else f"{name}.shape[{axis}]"
    if kind == "negative-index":
        return (
            f"index {position} of axis {axis} is negative, so Numba counts it from the end, to {position + extent}: "
            f"guard the access, or write {extent_as} - {-position} if that is meant"
        )
    return (
        f"index {position} is outside of axis {axis} of {'this part of ' if part else ''}{name!r}, which has {extent} "
        f"{'element' if extent == 1 else 'elements'}: guard the access by a comparison with {extent_as}"
    )
