"""Follow one thread from statement to statement: where it is, what it accesses, which values its variables have.

Where a statement is in a thread's run is a tuple, `at`: the places of the calls and loops around the statement, each
loop with its turn, and the statement's own place. Lanes with equal tuples execute together, and in the order of the
tuples: an earlier turn before a later one, a branch before the code after it. `language/paths.py` has the same rule.
"""

from dis import opmap
from types import FrameType

import numpy as np

from normlab.sim.language.source import Line
from normlab.sim.language.steps import STEP
from normlab.sim.tracing.play.data import Value

# A place within a statement is this plus its instruction's offset. It is negative, so that a place within a loop's test
# comes before the statements of the loop's body, whose places are their numbers.
WITHIN = -(1 << 24)


# With slots, as the next class: a recording makes up to half a million events.
class Event:
    """One statement that a thread executes, or the rest of one after a call or a meeting inside of it."""

    __slots__ = ("accesses", "at", "changes", "line", "meeting")

    def __init__(self, at: tuple[int, ...], line: Line):
        """Begin without an access."""
        self.at, self.line = at, line
        self.accesses: list[tuple[int, int]] = []  # site, address
        self.meeting: int | None = None
        self.changes: dict[str, Value] = {}


class Call:
    """A function that the thread is in: its frame, the place of the call, and the (loop, turn) that it is in."""

    __slots__ = ("at", "frame", "outside", "turns")

    def __init__(self, frame: FrameType, outside: tuple[int, ...]):
        """Begin before the first statement."""
        self.frame, self.outside, self.at = frame, outside, outside
        self.turns: list[tuple[int, int]] = []

    def go(self, place: int, depth: int, loop: bool) -> tuple[int, ...]:
        """Go to the statement `place`, inside `depth` loops, or to the next test of the loop `place`."""
        if loop:
            # Another loop may have stood at this depth before: then this is a first turn.
            again = len(self.turns) > depth and self.turns[depth][0] == place
            # The loops inside of this one begin anew with each of its turns, so they are forgotten.
            self.turns[depth:] = [(place, self.turns[depth][1] + 1 if again else 1)]
        else:
            # The turns of loops that have ended, also by a break, which no mark tells of.
            del self.turns[depth:]
        around = tuple(number for turn in self.turns for number in turn)
        # A loop's test has no place of its own after its turn, so it sorts before all statements of that turn.
        self.at = (*self.outside, *around) if loop else (*self.outside, *around, place)
        return self.at


class Track:
    """The events of one thread, at most `most`; `watch`: the names of the variables to record, or None for all."""

    def __init__(self, watch: frozenset[str] | None, most: int):
        """Begin without an event."""
        self.events: list[Event] = []
        self.cut = False  # whether the thread went on after its last event
        self._watch, self._most = watch, most
        self._calls: list[Call] = []
        self._values: dict[str, Value] = {}

    def step(self, frame: FrameType, place: int, depth: int, sets: tuple[str, ...] | None) -> None:
        """Note that the thread comes to a statement of `frame`, or to the test of a loop, which `sets` variables."""
        # `for` has set its variables already. They are left to its own event, and not noted in that before it.
        self._note_values(sets or ())
        self._enter(frame)
        self._begin(self._calls[-1].go(place, depth, sets is not None), frame)

    def here(self, frame: FrameType) -> Event:
        """Return the event of the statement at which `frame` stands, to note an access or a meeting in it."""
        if self._calls and self._calls[-1].frame is frame and self.events[-1].meeting is None:
            return self.events[-1]
        # After a call or a meeting within the statement the rest of it is another event.
        self._note_values()
        self._enter(frame)
        return self._begin((*self._calls[-1].at, place_within(frame)), frame)

    def end(self) -> None:
        """Note the last values, and forget the frames."""
        # A frame that is kept alive would keep all its variables.
        self._note_values()
        self._calls.clear()

    def _begin(self, at: tuple[int, ...], frame: FrameType) -> Event:
        event = Event(at, Line(frame.f_code.co_filename, frame.f_lineno))
        # Beyond the limit the event is still returned, so that callers need no special case, and then forgotten.
        if len(self.events) < self._most:
            self.events.append(event)
        else:
            self.cut = True
        return event

    def _enter(self, frame: FrameType) -> None:
        """Make `frame` the innermost call."""
        if self._calls and self._calls[-1].frame is frame:
            return
        # Nothing tells of a function's return: a call has returned if its frame is not among those around `frame`.
        around = set()
        outer: FrameType | None = frame
        while outer is not None:
            around.add(outer)
            outer = outer.f_back
        while self._calls and self._calls[-1].frame not in around:
            self._calls.pop()
        if not self._calls:
            self._calls.append(Call(frame, ()))
        elif self._calls[-1].frame is not frame:
            caller = self._calls[-1]
            # Two calls in one statement of the caller are at two instructions, so their events do not mix.
            self._calls.append(Call(frame, (*caller.at, place_within(caller.frame))))

    def _note_values(self, later: tuple[str, ...] = ()) -> None:
        """Note in the last event which variables, other than those `later`, have changed since the event before it."""
        # Variables are read off the frames, all of them at every statement: the interpreter reports no assignment.
        now: dict[str, Value] = {}
        for call in self._calls:  # of two variables of one name the inner function's is seen
            for name, value in call.frame.f_locals.items():
                # Names with this beginning are the simulator's own, put into the rewritten source.
                wanted = name in self._watch if self._watch is not None else not name.startswith("_simulated_")
                if wanted and isinstance(value, (int, float, complex, np.generic)) and not isinstance(value, np.void):
                    # As Python's number, which is small and goes into JSON; arrays are shown by their requests.
                    now[name] = value.item() if isinstance(value, np.generic) else value
        before, self._values = self._values, now
        # The variables `later` count as unchanged, or as not there yet if they were not. `now` is `self._values`, too,
        # so their change is found, and noted in the next event, at the next call.
        now |= {name: before[name] for name in later if name in before}
        for name in set(later) - before.keys():
            now.pop(name, None)
        if self.events:
            changes = self.events[-1].changes
            changes |= {name: value for name, value in now.items() if not _same(value, before.get(name))}
            changes |= {name: None for name in before if name not in now}


def place_within(frame: FrameType) -> int:
    """Return the place, within its statement, of the instruction at which a frame stands."""
    code, offset = frame.f_code.co_code, frame.f_lasti
    # While a specialised instruction of Python 3.12 calls a method, its frame stands at one of its cache entries.
    while code[offset] == opmap["CACHE"]:
        offset -= 2
    return WITHIN + offset


def _same(one: Value, other: Value) -> bool:
    """Return whether two values are the same; a NaN is the same as a NaN."""
    # With the type, because 1 == True in Python: a variable that was 1 and is True has changed.
    return (one == other and type(one) is type(other)) or (one != one and other != other)


def marked_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame, from `frame` outwards, whose code has marks; None without readable source."""
    while frame is not None and STEP not in frame.f_code.co_names:
        frame = frame.f_back
    return frame
