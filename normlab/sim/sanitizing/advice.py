"""What to do about a finding: one sentence, chosen by who is involved and where."""

from normlab.sim.sanitizing.clocks import Access
from normlab.sim.sanitizing.findings import Act
from normlab.sim.tracing.request import line_of


def against_race(first: Act, second: Act, earlier: Access, later: Access) -> str:
    """Return what orders two accesses, or makes them harmless."""
    one, other = earlier[0].thread, later[0].thread
    both = f"the {first.operation} at line {first.line} and the {second.operation} at line {second.line}"
    at_once = first.line == second.line
    if at_once and first.operation == second.operation == "write":
        return f"two threads write the element at line {first.line}: let one of them write, or use cuda.atomic"
    if "atomic" in (first.operation, second.operation):
        plain = first if second.operation == "atomic" else second
        barrier = "a barrier" if one.block is other.block else "a grid sync"
        return f"only one of {both} is an atomic: make the {plain.operation} one too, or put {barrier} between them"
    if one.block is not other.block:
        mine, theirs = one.block.signal, other.block.signal
        if mine is not None and theirs is not None and mine[0] == theirs[0]:
            signal = line_of(mine[1], mine[2]).number
            return (
                f"no fence between the {first.operation} at line {first.line} and the atomic at line {signal} that is "
                f"to tell the other block of it: put cuda.threadfence() before the atomic"
            )
        return (
            f"nothing orders {both}, which are in two blocks: put them into two kernels, or a grid sync between them, "
            "or update the element by cuda.atomic"
        )
    barrier = "syncwarp" if one.warp == other.warp else "syncthreads"
    if at_once:
        return (
            f"line {first.line} writes an element that another thread reads there: read into a variable, then "
            f"cuda.{barrier}(), then write; or update the element by cuda.atomic"
        )
    return f"no barrier between {both}: put cuda.{barrier}() between them"


def against_garbage(name: str, space: str, operation: str, line: int | None) -> str:
    """Return what to do about an element that nobody had written."""
    if space == "global":
        return f"nothing had written this element of {name!r} before line {line}, and the array came without contents"
    return (
        f"nothing had written this element of {name!r} before the {operation} at line {line}, and {space} memory "
        "begins as garbage: write it first"
    )


def against_index(kind: str, name: str, axis: int, position: int, extent: int) -> str:
    """Return what to do about an index that is not inside its dimension."""
    if kind == "negative-index":
        return (
            f"index {position} of axis {axis} is negative, so Numba counts it from the end, to {position + extent}: "
            f"guard the access, or write {name}.shape[{axis}] - {-position} if that is meant"
        )
    return (
        f"index {position} is outside of axis {axis} of {name!r}, which has {extent} "
        f"{'element' if extent == 1 else 'elements'}: guard the access by a comparison with {name}.shape[{axis}]"
    )
