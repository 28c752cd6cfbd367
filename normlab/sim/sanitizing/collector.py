"""Collect the mistakes of a launch into findings; the same mistake by many threads is one finding."""

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

from normlab.sim.language.source import Line, line_of
from normlab.sim.sanitizing.clocks import Access, ThreadClock
from normlab.sim.sanitizing.findings import Act, Finding, Report


def act(operation: str, thread: ThreadClock, source: Line | None) -> Act:
    """Return what `thread` did at a line."""
    return Act(operation, thread.block.index, thread.index, thread.warp, thread.lane, source)


def act_of(operation: str, access: Access) -> Act:
    """Return an access as an act."""
    epoch, code, instruction = access
    return act(operation, epoch.thread, line_of(code, instruction))


class _Draft:
    """A finding that may happen again."""

    def __init__(self, finding: Finding, reach: int):
        # Benign until an event is not; the count begins at 0 because `add` counts the first event, too.
        self.finding, self.reach, self.count, self.benign = finding, reach, 0, True


class Collector:
    """The findings so far."""

    def __init__(self) -> None:
        """Start with none."""
        self._drafts: dict[tuple, _Draft] = {}  # by kind, array and lines
        self._events: dict[Hashable, tuple[_Draft, Any]] = {}  # event → its draft, found without describing it again

    def add(
        self, event: Hashable, keep: Any, make: Callable[[], Finding], benign: bool = False, reach: int = 0
    ) -> None:
        """Count an event, and describe it by `make` if it is the first of its kind.

        `event`: a key with ids of objects; `keep` holds these objects, so that no other object gets their ids. If
        several events are the same finding, the description with the widest `reach` is kept.
        """
        # A race in a loop happens thousands of times: describing it takes a line's text and advice, counting it an
        # integer.
        if event not in self._events:
            finding = make()
            # A set of lines, because the two threads may come in either order.
            sources = frozenset(one.source for one in (finding.first, finding.second) if one is not None)
            draft = self._drafts.setdefault((finding.kind, finding.array, sources), _Draft(finding, reach))
            if reach > draft.reach:
                draft.finding, draft.reach = finding, reach
            self._events[event] = draft, keep
        draft, _ = self._events[event]
        draft.count += 1
        # One event with different values makes the finding harmful.
        draft.benign = draft.benign and benign

    def report(self, kernel: str) -> Report:
        """Return all findings, sorted by their lines."""
        findings = [replace(one.finding, count=one.count, benign=one.benign) for one in self._drafts.values()]
        findings.sort(key=lambda finding: (finding.first.file or "", finding.lines, finding.kind, finding.array or ""))
        return Report(kernel, tuple(findings))
