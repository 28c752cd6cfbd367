"""Keep track of the lanes that run together, and of their variables: divergence and reconvergence.

A SIMT machine runs one instruction for 32 lanes, with a mask of those that take part. Where an `if` divides them, the
machine runs one side with a part of the mask, then the other side with the rest, and goes on with all of them after
it. The engine does the same for the lanes of many blocks at once. In place of a mask it keeps the *places* of the lanes
that take part, and packs their values together: a `Frame` of 40 lanes of 65,536 computes with 40 numbers, and no
operator has to know about masks.

- A branch that only some lanes take runs in a `child` frame. A variable is packed when the branch first reads it.
- Where the branch ends, the lanes come back: `absorb` unpacks the variables that the branch has assigned.
- Lanes that leave a loop or a function early (`break`, `continue`, `return`) are noted in `left`, and take no part in
  the statements that follow, until the place where they meet the others again.
"""

from typing import Any, NamedTuple

import numpy as np

from normlab.sim.vectorised.refusal import NotVectorisedError
from normlab.sim.vectorised.values import Unbound, Vector, merge, take

CONTINUE, BREAK, RETURN = 1, 2, 3  # the order counts: a loop keeps the lanes below BREAK (statements._ended)


class Lanes:
    """The lanes of a frame: their numbers in the chunk, in rising order, and what depends on nothing else."""

    __slots__ = ("_known", "_parent", "_places", "ids", "machine", "moves", "width")

    def __init__(self, machine: Any, ids: np.ndarray, parent: "Lanes | None" = None, places: Any = None):
        """Hold the lanes `ids`, those at `places` of `parent`."""
        self.machine, self.ids, self.width = machine, ids, len(ids)
        self._parent, self._places, self._known = parent, places, {}  # type: ignore[var-annotated]
        self.moves: dict[Any, Any] = {}  # belongs to accesses.py

    def special(self, name: Any) -> Any:
        """Return a value that lanes have by their place in the grid, such as "threadIdx.x"; see Machine.special."""
        found = self._known.get(name)
        if found is None:
            # A branch takes its part of what has been computed for the whole chunk.
            if self._parent is None:
                found = self.machine.special(name)
            else:
                found = take(self._parent.special(name), self._places)
            self._known[name] = found
        return found

    def numbers(self, name: Any) -> Any:
        """Return a special value as plain numbers."""
        found = self.special(name)
        return found.data if type(found) is Vector else found

    def child(self, places: np.ndarray) -> "Lanes":
        """Return the lanes at `places`."""
        # `places` rise, so lane numbers keep rising: `invoke` searches in them, and the order of atomics needs it.
        return Lanes(self.machine, self.ids[places], self, places)


class Inner(NamedTuple):
    """A function that the running function `call` has defined inside itself."""

    code: Any
    call: Any


class Exit:
    """Lanes that have come to the end of a branch or left a loop, with the variables that they have assigned."""

    __slots__ = ("left", "places", "values", "width")

    def __init__(self, places: Any, width: int, values: dict[str, Any], left: Any):
        """Hold `values` of the `width` lanes at `places` (None: all); `left` is as in a Frame."""
        self.places, self.width, self.values, self.left = places, width, values, left


class Frame:
    """Lanes that run the same statements of one function, and their variables.

    `left`: None, or for each lane 0 or the statement by which it has left this frame's statements.
    """

    __slots__ = ("assigned", "call", "lanes", "left", "parent", "places", "variables", "width")

    def __init__(self, call: Any, lanes: Lanes, parent: "Frame | None" = None, places: Any = None):
        """Start a frame of `call`, a run of a function (calls.py); `places` of its lanes in `parent`, None: all."""
        self.call, self.lanes, self.parent, self.places = call, lanes, parent, places
        self.width = lanes.width
        self.variables: dict[str, Any] = {}
        self.assigned: set[str] = set()
        self.left: np.ndarray | None = None

    def read(self, name: str) -> Any:
        """Return a variable's value in this frame's lanes; Unbound if it has none."""
        # `self` stands for a variable that is not here, because None and Unbound are values that may be.
        found = self.variables.get(name, self)
        if found is self:
            if self.parent is None:
                return Unbound
            found = self.parent.read(name)
            if self.places is not None:
                found = take(found, self.places)
            # Kept: the parent's statements wait until this frame has ended, so its variables do not change.
            self.variables[name] = found
        return found

    def assign(self, name: str, value: Any) -> None:
        """Give a variable a value in all lanes of this frame."""
        self.variables[name] = value
        # The parent gets back what is in here. All else that `variables` holds is only a packed copy.
        self.assigned.add(name)

    def child(self, places: Any) -> "Frame":
        """Return a frame for the lanes at `places`; None: for all of them."""
        # None: a loop has a frame of its own, in whose place `shrunk` puts a narrower one when lanes leave.
        return Frame(self.call, self.lanes if places is None else self.lanes.child(places), self, places)

    def shrunk(self, stay: np.ndarray) -> "Frame":
        """Return a frame of the same parent in which only the lanes at `stay` go on."""
        places = stay if self.places is None else self.places[stay]
        frame = Frame(self.call, self.lanes.child(stay), self.parent, places)
        # Packed at once, and not at the first read: this frame ends, and the parent has the values from before the
        # loop.
        frame.variables = {name: take(value, stay) for name, value in self.variables.items()}
        frame.assigned = set(self.assigned)
        return frame

    def leave(self, how: int) -> None:
        """Note that all lanes of this frame leave by a statement."""
        self.left = np.full(self.width, how, np.int8)

    def exit(self, leaving: np.ndarray | None = None, left: Any = None) -> Exit:
        """Return the lanes at `leaving` (None: all) as they leave for the parent's frame."""
        # What was only read has not changed: the parent has it.
        values = {name: self.variables[name] for name in self.assigned}
        if leaving is None:
            return Exit(self.places, self.width, values, left)
        # From places in this frame to places in the parent.
        places = leaving if self.places is None else self.places[leaving]
        return Exit(places, len(leaving), {name: take(value, leaving) for name, value in values.items()}, left)

    def absorb(self, exits: list[Exit]) -> None:
        """Take the variables of lanes that come back; lanes that are in no exit keep their own."""
        # All exits at once: a variable that both sides of an `if` assign needs no old value, which may be of another
        # type.
        for name in set().union(*(one.values for one in exits)):
            pieces = [(one.places, one.values[name]) for one in exits if name in one.values]
            covered = sum(one.width for one in exits if name in one.values)
            old = self.read(name) if covered < self.width else None
            self.assign(name, merge(self.width, pieces, old, covered == self.width))
        # A lane that has left the loop or the function inside the branch has left this frame's statements, too.
        for one in exits:
            if one.left is not None:
                if self.left is None:
                    self.left = np.zeros(self.width, np.int8)
                self.left[slice(None) if one.places is None else one.places] = one.left

    def staying(self) -> np.ndarray:
        """Return the places of the lanes that have not left."""
        assert self.left is not None
        return np.flatnonzero(self.left == 0)


def value_of(frame: Frame, name: str) -> Any:
    """Return a variable as an expression reads it; raises NotVectorisedError if a lane has not assigned it."""
    found = frame.read(name)
    # Only a Mixed has a choice; it is negative in the lanes that have no value.
    if found is Unbound or (hasattr(found, "choice") and (found.choice < 0).any()):
        raise NotVectorisedError(f"{name!r} is read in lanes that have not assigned it")
    return found
