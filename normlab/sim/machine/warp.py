"""Run a warp: its lanes one after another, each to its next stop; then the shuffles and votes that all have reached."""

from typing import Any

from normlab.sim.machine.shuffles import RESOLVERS
from normlab.sim.machine.threads import Thread
from normlab.sim.protocols import Block


class Warp:
    """Thirty-two threads that shuffle and vote among themselves; the last warp of a block may have fewer.

    `live` has every thread that has not returned, in the order of the lanes; `live_mask` has a bit for each of them. A
    live thread is in at most one of `ready`, `waiting` and `spinning`: in none while it runs or waits at a barrier.
    """

    __slots__ = ("block", "live", "live_mask", "ready", "seen", "spinning", "threads", "waiting")

    def __init__(self, block: Block):
        """Start without threads; `Block` adds them."""
        self.block = block
        self.seen: Any = None  # for the observer, which may keep something here
        self.threads: list[Thread] = []
        self.live: list[Thread] = []
        self.live_mask = 0
        self.ready: list[Thread] = []  # the lanes that can run now
        self.waiting: list[Thread] = []  # the lanes that stand at a warp operation
        self.spinning: list[Thread] = []  # the lanes that gave way in a spin loop; they run again at the next `run`

    def run(self) -> None:
        """Run the lanes until each has returned, spins, or waits for lanes or threads that this call cannot bring.

        A lane may wait at a barrier for other warps, or at a warp operation for a lane that spins or waits elsewhere.
        """
        grid = self.block.grid
        # A lane that gave way in a spin loop gets another turn: another warp may have stored the value since.
        self.ready, self.spinning = self.ready + self.spinning, []
        while True:
            ready, self.ready = grid.order(self.ready), []
            grid.turns = iter(ready)
            grid.hand_over()  # starts the first lane; returns when the last of `turns` has stopped or returned
            if not (self.waiting and self.resolve()):
                return

    def resolve(self) -> bool:
        """Answer the warp operations that all live lanes of their mask have reached; return whether there was one.

        Lanes belong together if they wait at the same operation with the same mask; their call sites may differ, as on
        Volta and later. An `activemask` names no lanes to wait for. It is answered if no other operation is complete,
        for the lanes that stand at one call site.
        """
        first, *others = self.waiting
        operation, mask = first.operation, first.mask
        if len(others) + 1 == (mask & self.live_mask).bit_count() and operation != "activemask":
            for thread in others:
                if thread.operation != operation or thread.mask != mask:
                    break
            else:  # nearly always all waiting lanes belong together: answer them without making groups
                self.answer(self.waiting)
                return True
        groups: dict[tuple, list[Thread]] = {}
        for thread in self.waiting:
            groups.setdefault((thread.operation, thread.mask), []).append(thread)
        # Lanes in two branches may wait at two operations, each complete for itself; both are answered now.
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
        # At an activemask no lane waits for another lane, so it is neither progress nor a meeting that orders accesses.
        if group[0].operation != "activemask":
            self.block.grid.progress += 1
            if (observer := self.block.grid.cuda.observer) is not None:
                observer.meeting(group)
        RESOLVERS[group[0].operation]({thread.lane: thread for thread in group})
        for thread in group:
            thread.operation = None
        if len(group) == len(self.live):  # the whole warp: `live` has the order of the lanes and needs no sorting
            self.waiting, self.ready = [], list(self.live)
        else:
            self.waiting = [thread for thread in self.waiting if thread.operation is not None]
            self.ready = sorted(self.ready + group, key=lambda thread: thread.lane)
