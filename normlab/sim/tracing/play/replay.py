"""Join the threads' tracks to the steps of their warps, as a GPU would execute them.

The simulator runs one lane after another, each to its next stop. Here the warps of the block take turns, one step each,
and the lanes of a warp run in lockstep. The values are those of the run. So two warps that pass values to each other
without a barrier may do so in another order than is shown.
"""

from collections import Counter, defaultdict

from normlab.sim.tracing.play.data import Meeting, Standing, Step, Value
from normlab.sim.tracing.play.track import Event, Track
from normlab.sim.tracing.request import Request
from normlab.sim.tracing.sites import Site


class Lane:
    """A lane on its way through its events."""

    def __init__(self, number: int, track: Track):
        """Stand before the first event."""
        self.number, self._track = number, track
        self._next = 0
        self.waits: int | None = None  # the meeting that it stands at

    @property
    def event(self) -> Event:
        """The next event."""
        return self._track.events[self._next]

    @property
    def returned(self) -> bool:
        """Whether the lane has come to its end."""
        return not self._track.cut and self._next == len(self._track.events)

    @property
    def lost(self) -> bool:
        """Whether the lane goes on after its last recorded event."""
        return self._track.cut and self._next == len(self._track.events)

    def go_on(self) -> None:
        """Go to the next event."""
        self.waits, self._next = None, self._next + 1


def replay(warps: list[list[Track]], meetings: list[Meeting], sites: list[Site], block: tuple) -> list[Step]:
    """Return the steps of a block: its tracks by warp and lane. They end where the first cut track does."""
    lanes = [[Lane(number, track) for number, track in enumerate(tracks)] for tracks in warps]
    standing = [Standing() for _ in warps]
    arrived: defaultdict[int, list[Lane]] = defaultdict(list)
    steps: list[Step] = []
    while True:
        before = len(steps)
        for warp, all_lanes in enumerate(lanes):
            ready = [lane for lane in all_lanes if lane.waits is None and not lane.returned]
            if not ready:
                continue
            # From here on it is not known what this lane does, and with whom it meets.
            if any(lane.lost for lane in ready):
                return steps
            # Of the lanes that do not wait, those run that are the furthest behind: an earlier turn of a loop before a
            # later one, a branch before the code after it. So lanes that have parted run together again.
            behind = min(lane.event.at for lane in ready)
            active = [lane for lane in ready if lane.event.at == behind]
            events = {lane.number: lane.event for lane in active}
            # After `events` is made: `_meet` sends the lanes on to their next events.
            line, meets = active[0].event.line, _meet(active, meetings, arrived)
            # The last arrival frees lanes of other warps, too. Only warps with waiting lanes can have changed.
            for number, others in enumerate(lanes):
                if standing[number].meetings:
                    standing[number] = _stands(standing[number], others)
            standing[warp] = _stands(Standing(line, tuple(events)), all_lanes)
            made = requests(events, sites, block, warp)
            steps.append(Step(warp, line, tuple(events), made, meets, _changes(events), tuple(standing)))
        if len(steps) == before:  # in a whole round of turns no warp had a lane to run
            return steps


def _meet(active: list[Lane], meetings: list[Meeting], arrived: dict[int, list[Lane]]) -> dict[int, tuple[int, ...]]:
    """Let lanes arrive at their meetings, and all others go on; return the lanes that arrive at each meeting."""
    found: dict[int, list[Lane]] = {}
    for lane in active:
        if lane.event.meeting is None:
            lane.go_on()
        else:
            found.setdefault(lane.event.meeting, []).append(lane)
    for meeting, there in found.items():
        arrived[meeting] += there
        # The last to arrive wait, too, for a moment: `go_on` treats all that have met alike.
        for lane in there:
            lane.waits = meeting
        if len(arrived[meeting]) == meetings[meeting].threads:
            for lane in arrived.pop(meeting):
                lane.go_on()
    return {meeting: tuple(lane.number for lane in there) for meeting, there in found.items()}


def _stands(before: Standing, lanes: list[Lane]) -> Standing:
    waiting = [lane for lane in lanes if lane.waits is not None]
    return Standing(
        before.line,
        before.active,
        tuple(lane.number for lane in waiting),
        tuple(lane.number for lane in lanes if lane.returned),
        tuple(sorted({lane.waits for lane in waiting if lane.waits is not None})),
    )


def requests(events: dict[int, Event], sites: list[Site], block: tuple, warp: int) -> tuple[Request, ...]:
    """Return the requests of lanes that execute together: for each instruction the lanes that came to it."""
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}  # (site, how often before) → (lane, address)
    for lane, event in events.items():
        visits: Counter[int] = Counter()
        # A statement may access a site several times, as a slice does, element by element. The lanes' first visits are
        # one request, their second visits the next, and so on.
        for number, address in event.accesses:
            found.setdefault((number, visits[number]), []).append((lane, address))
            visits[number] += 1
    made = []
    for (number, _), accesses in found.items():
        site = sites[number]
        made.append(
            Request(
                site.line,
                site.operation,
                site.heat.space,
                site.heat.name,
                site.size * site.parts,  # a complex number is one request here, and two in the counters
                site.origin,
                block,
                warp,
                tuple(lane for lane, _ in accesses),
                tuple(address for _, address in accesses),
            )
        )
    return tuple(made)


def _changes(events: dict[int, Event]) -> dict[str, dict[int, Value]]:
    found: dict[str, dict[int, Value]] = {}
    for lane, event in events.items():
        for name, value in event.changes.items():
            found.setdefault(name, {})[lane] = value
    return found
