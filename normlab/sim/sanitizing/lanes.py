"""Report lanes that the mask of their warp operation leaves out, and shuffles that read from such lanes."""

import sys
from typing import Any

from normlab.sim.protocols import Thread
from normlab.sim.sanitizing.collector import Collector, act, act_of
from normlab.sim.sanitizing.findings import Finding
from normlab.sim.sanitizing.places import line_at, place_of
from normlab.sim.sanitizing.watch import Watch


class Lanes:
    """Adds wrong shuffle masks to the findings."""

    def __init__(self, watch: Watch, collector: Collector):
        """Add to `collector`."""
        self._watch, self._collector = watch, collector
        self._outside_mask: list[Any] = []  # threads that shuffle with a mask without themselves, and have been noted
        self._excused: Any = None  # the one of these that is shuffling now

    def meet(self, first: Thread) -> None:
        """Report no second finding for `first`, the only lane of a shuffle, if its mask has been reported already."""
        self._excused = None
        if self._outside_mask and first in self._outside_mask:
            self._excused = first
            self._outside_mask.remove(first)

    def outside_mask(self, thread: Thread, operation: str, mask: int) -> None:
        """Report a lane that its own mask leaves out."""
        access = self._watch.access(sys._getframe(1))
        advice = (
            f"lane {thread.lane} calls {operation} with mask {mask:#010x}, which leaves the lane itself out: "
            "give a mask of all lanes that come to this call"
        )

        def make() -> Finding:
            return Finding("shuffle-mask", None, None, (), act_of(operation, access), None, advice)

        self._collector.add(("shuffle-mask", id(access.code), access.instruction), access.code, make)
        if operation.startswith("shfl"):
            # The lane goes on as if the mask named it alone, and its shuffle then reads from nowhere: no second
            # finding.
            self._outside_mask.append(thread)

    def from_nowhere(self, thread: Thread, source: int, why: str) -> None:
        """Report a lane that reads from lane `source`, which gives no value; `why`: the simulator's reason."""
        if thread is self._excused:
            return
        threads = thread.warp.threads
        first = act(str(thread.operation), self._watch.clock(thread), line_at(place_of(thread)))
        second = act("absent", self._watch.clock(threads[source]), None) if source < len(threads) else None
        absent = why == "has returned"  # the lane may also have never entered the branch; the advice is the same
        remedy = "outside of the condition" if absent else "and name it in the mask"
        advice = (
            f"lane {thread.lane} reads from lane {source}, which {'does not come to this call' if absent else why} "
            f"(mask {thread.mask:#010x}): let every lane that is read come to this call, {remedy}"
        )
        event = "shuffle-mask", first.source, why
        self._collector.add(event, None, lambda: Finding("shuffle-mask", None, None, (), first, second, advice))
