"""A warp: it runs its lanes one after another, each to its next stop, then answers the operations that they meet at."""

from typing import Any

from normlab.sim.machine.shuffles import RESOLVERS
from normlab.sim.machine.threads import Thread
from normlab.sim.protocols import Block


class Warp:
    """Thirty-two threads (the last warp of a block may have fewer) that shuffle and vote among themselves."""

    __slots__ = ("block", "live", "live_mask", "ready", "seen", "spinning", "threads", "waiting")

    def __init__(self, block: Block):
        """Start without threads."""
        self.block = block
        self.seen: Any = None  # belongs to the observer
        self.threads: list[Thread] = []
        self.live: list[Thread] = []
        self.live_mask = 0
        self.ready: list[Thread] = []
        self.waiting: list[Thread] = []  # the lanes that stand at a warp operation
        self.spinning: list[Thread] = []  # the lanes that gave way in a spin loop; they run again in the next turn

    def run(self) -> None:
        """Run the lanes until each has returned, spins, or waits for more than this warp can give."""
        grid = self.block.grid
        self.ready, self.spinning = self.ready + self.spinning, []
        while True:
            ready, self.ready = grid.order(self.ready), []
            grid.turns = iter(ready)
            grid.hand_over()  # returns when the last of these lanes has stopped
            if not (self.waiting and self.resolve()):
                return

    def resolve(self) -> bool:
        """Answer the warp operations whose lanes are all there; return whether there was one.

        Lanes belong together when operation and mask agree; their call sites may differ (as on Volta and later). An
        `activemask` names no lanes to wait for, so it is answered last, for the lanes that stand at one call site.
        """
        first, *others = self.waiting
        operation, mask = first.operation, first.mask
        if len(others) + 1 == (mask & self.live_mask).bit_count() and operation != "activemask":
            for thread in others:
                if thread.operation != operation or thread.mask != mask:
                    break
            else:  # nearly always all lanes are in one group: answer it without making groups
                self.answer(self.waiting)
                return True
        groups: dict[tuple, list[Thread]] = {}
        for thread in self.waiting:
            groups.setdefault((thread.operation, thread.mask), []).append(thread)
        complete = [
            group
            for (operation, mask), group in groups.items()
            if operation != "activemask" and len(group) == (mask & self.live_mask).bit_count()
        ]
        if not complete:
            sites: dict[tuple, list[Thread]] = {}
            for thread in groups.get(("activemask", 0), ()):
                sites.setdefault(thread.given, []).append(thread)
            complete = list(sites.values())
        for group in complete:
            self.answer(group)
        return bool(complete)

    def answer(self, group: list[Thread]) -> None:
        """Give every thread of a complete `group` its result, and let it run on."""
        if group[0].operation != "activemask":  # no lane has waited for another one, so nothing is ordered
            self.block.grid.progress += 1
            if (observer := self.block.grid.cuda.observer) is not None:
                observer.meeting(group)
        RESOLVERS[group[0].operation]({thread.lane: thread for thread in group})
        for thread in group:
            thread.operation = None
        if len(group) == len(self.live):  # the whole warp: `live` is in the order of the lanes
            self.waiting, self.ready = [], list(self.live)
        else:
            self.waiting = [thread for thread in self.waiting if thread.operation is not None]
            self.ready = sorted(self.ready + group, key=lambda thread: thread.lane)
