"""Compute the picture of a block's tree: the flows of values as arrows between threads.

Both matplotlib (tree.py) and the HTML report draw from these numbers.
"""

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from normlab.sim.tracing.flows import LIMIT, Flow, Flows
from normlab.sim.tracing.pictures.words import count


class Arrow(NamedTuple):
    """`values` values on their way: thread `source` gives them in step `start`, `target` has them in step `end`."""

    source: int
    target: int
    start: int
    end: int
    by: str
    values: int


@dataclass(frozen=True)
class Tree:
    """Which thread gives values to which, among `threads` and within `steps`.

    `crossing`: arrows between these threads and others. `barriers`: the steps that begin with one; `all_barriers`: how
    many the block has; `partial`: whether the trace kept the first flows only.
    """

    arrows: list[Arrow]
    crossing: list[Arrow]
    barriers: list[int]
    all_barriers: int
    threads: range
    steps: range
    partial: bool

    @property
    def numbers(self) -> str:
        """Say in words what the tree shows."""
        ways: Counter[str] = Counter()
        for arrow in self.arrows:
            ways["by shuffle" if arrow.by == "shuffle" else f"through {arrow.by!r}"] += arrow.values
        crossing = sum(arrow.values for arrow in self.crossing)
        # Such arrows are drawn in half, so their values are not counted as shown.
        if crossing:
            ways["from or to threads not shown"] = crossing
        by = ", ".join(f"{count(values, 'value')} {way}" for way, values in ways.items())
        barriers = count(self.all_barriers, "barrier")
        if len(self.barriers) < self.all_barriers:
            barriers = f"{len(self.barriers)} of the block's {barriers}"
        kept = f"; the trace keeps the first {LIMIT:,} values only" if self.partial else ""
        return f"{by}; {barriers}{kept}"


def tree(
    flows: Flows, steps: range | int | None = None, threads: range | int | None = None, to: int | None = None
) -> Tree:
    """Return the flows of one block as arrows; flows between the same threads at the same time share an arrow.

    `steps`, `threads`: which to show, an int for the first so many; default: all. `to`: a thread; only values that are
    part of what it has in the end are shown. Raises TypeError for what is no int or range, ValueError where nothing is
    left to show.
    """
    if not flows.flows:
        raise ValueError("no thread of the first block gave a value to another, by shuffle or by shared memory")
    if to is not None and not 0 <= to < flows.threads:
        raise ValueError(f"to is a thread of the block, 0 to {flows.threads - 1}; got {to!r}")
    kept = flows.flows if to is None else _leading_to(to, flows.flows)
    # Of all flows and not of those kept: `steps` means the same whichever thread is followed.
    last = max(flow.end for flow in flows.flows)
    shown_steps = _chosen("steps", steps, last + 1)
    shown_threads = _chosen("threads", threads, flows.threads)
    within: Counter[tuple[int, int, int, int, str]] = Counter()
    crossing = within.copy()
    for flow in kept:
        ends = (flow.source in shown_threads) + (flow.target in shown_threads)  # 0, 1 or 2
        if ends and flow.start in shown_steps and flow.end in shown_steps:
            # The source line is left out of the key: values between the same threads at the same time are one arrow.
            (within if ends == 2 else crossing)[flow[:5]] += 1
    if not within and not crossing:
        first = min(flow.start for flow in flows.flows)
        raise ValueError(
            f"no value goes from or to threads {shown_threads.start} to {shown_threads.stop - 1} in steps "
            f"{shown_steps.start} to {shown_steps.stop - 1}; the block has threads 0 to {flows.threads - 1}, "
            f"and values go in steps {first} to {last}"
        )
    arrows, others = ([Arrow(*flow, values) for flow, values in some.items()] for some in (within, crossing))
    # Only as far as values go: a kernel may meet many times after the last value has arrived.
    drawn_steps = range(shown_steps.start, max(arrow.end for arrow in arrows + others) + 1)
    barriers = [step for step in flows.barriers if step in drawn_steps]
    partial = len(flows.flows) >= LIMIT  # where `Flows` stops watching
    return Tree(arrows, others, barriers, len(flows.barriers), shown_threads, drawn_steps, partial)


def _leading_to(thread: int, flows: list[Flow]) -> list[Flow]:
    """Return the flows whose values are part of what `thread` has in the end, however many threads pass them on."""
    latest = {thread: max(flow.end for flow in flows)}  # thread → the last step whose values still reach `thread`
    found = []
    # From the end of time back, because flows that pass a value on end later than the one that brought it, unless
    # threads race.
    for flow in sorted(flows, key=lambda one: one.end, reverse=True):
        if flow.end <= latest.get(flow.target, -1):
            found.append(flow)
            # What the source had when it gave this value counts; what it got later did not reach `thread` this way.
            latest[flow.source] = max(flow.start, latest.get(flow.source, -1))
    return found


def _chosen(what: str, chosen: range | int | None, count: int) -> range:
    """Return the part of range(count) that the caller has chosen."""
    if chosen is not None and (isinstance(chosen, bool) or not isinstance(chosen, (int, range))):
        raise TypeError(f"{what} takes an int (the first so many) or a range, not {chosen!r}")
    asked = range(count) if chosen is None else range(chosen) if isinstance(chosen, int) else chosen
    # A range with a step is refused, because the axes show all that lies between two threads. A stop beyond the end is
    # cut, as a slice's is.
    if asked.step != 1 or not 0 <= asked.start < min(asked.stop, count):
        raise ValueError(f"{what} must lie within range({count}), without gaps, and not be empty; got {chosen!r}")
    return range(asked.start, min(asked.stop, count))
