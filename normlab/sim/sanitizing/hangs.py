"""Report threads that wait for each other, or for a value that no thread writes: the launch would never end."""

from normlab.sim.language.source import Line
from normlab.sim.machine.waiting import wanted
from normlab.sim.protocols import Block
from normlab.sim.sanitizing.collector import Collector, act
from normlab.sim.sanitizing.findings import Act, Finding
from normlab.sim.sanitizing.places import line_at, place_of
from normlab.sim.sanitizing.watch import Watch


def note_hang(blocks: list[Block], watch: Watch, collector: Collector) -> None:
    """Add a finding that says at which lines the threads of `blocks` wait, and for what."""
    places: dict[tuple[Line | None, str], Act] = {}
    reasons: dict[tuple[Line | None, str], str] = {}
    seconds: dict[tuple[Line | None, str], Act] = {}
    for thread in (thread for block in blocks for thread in block.threads if thread.operation is not None):
        # "a spin loop" is one of the operations, and the advice writes "the" before it.
        waits = act(thread.operation.removeprefix("a "), watch.clock(thread), line_at(place_of(thread)))
        # A thousand threads at one line are one place: the first of them is the example.
        key = waits.source, waits.operation
        if key in places:
            seconds.setdefault(key, waits)
        else:
            places[key], reasons[key] = waits, wanted(thread)
    # By text, because a line may be None. Every schedule then names the same place first.
    first, *others = sorted(places, key=str)
    advice = "no thread can go on: " + ", and ".join(
        f"the {operation} at line {source and source.number} waits for {reasons[source, operation]}"
        for source, operation in (first, *others)
    )
    partners: list[Act | None] = [places[other] for other in others]
    # With a single place the second thread is another one there, or none where a single thread waits.
    for second in partners or [seconds.get(first)]:
        finding = Finding("deadlock", None, None, (), places[first], second, advice)
        collector.add(("deadlock", second), None, lambda finding=finding: finding)  # type: ignore[misc]
