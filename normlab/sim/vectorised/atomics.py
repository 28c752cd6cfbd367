"""Do atomic operations of many lanes at once, with the result of the scheduler's order.

- Integer sums, maxima, minima and bit operations give the same memory in any order.
- A sum of floats does not: it waits in `pending` until its threads meet (shared memory) or the chunk ends (global
  memory), and is then done in the order of the scheduler: block, warp, lane, and each lane's own order.
- An operation whose result the kernel uses is done at once, lane after lane in the scheduler's order (rounds.py). This
  is right as long as each element is the target of one such statement.
"""

from typing import Any, NamedTuple

import numpy as np

from normlab.sim.language.arrays import as_kernel_array
from normlab.sim.machine.atomics import Atomics
from normlab.sim.machine.scheduler import TURN
from normlab.sim.vectorised.accesses import apart, converted, place_of, tell
from normlab.sim.vectorised.frames import Frame
from normlab.sim.vectorised.memory import Array
from normlab.sim.vectorised.proof import all_written
from normlab.sim.vectorised.refusal import NotVectorisedError, OrderError
from normlab.sim.vectorised.rounds import Moment
from normlab.sim.vectorised.values import Mixed, collect, scalars, take

# Operation → NumPy's function and the name under which it commutes.
COMMUTING = {
    "add": (np.add, "sum"),
    "sub": (np.subtract, "sum"),
    "max": (np.maximum, "max"),
    "min": (np.minimum, "min"),
    "nanmax": (np.maximum, "max"),  # integers, for which alone this row is used, have no NaN
    "nanmin": (np.minimum, "min"),
    "and_": (np.bitwise_and, "and"),
    "or_": (np.bitwise_or, "or"),
    "xor": (np.bitwise_xor, "xor"),
}


class Pending(NamedTuple):
    """Float sums of one statement that wait for their turn."""

    name: str
    accesses: Any  # the log that the store is in
    data: np.ndarray
    ids: np.ndarray
    places: np.ndarray
    numbers: np.ndarray
    moment: Moment


class _Alone:
    """Stands for a launch in which one thread runs: `Atomics` counts its updates there."""

    observer = None
    current = None

    @property
    def grid_run(self) -> "_Alone":
        """Return itself."""
        return self

    def spin(self, *arguments: Any) -> None:
        """Count nothing."""

    update = spin


ONE_BY_ONE = Atomics(_Alone())  # type: ignore[arg-type]


def update(frame: Frame, name: str, used: bool, array: Any, index: Any, values: tuple) -> Any:
    """Do `cuda.atomic.<name>(array, index, *values)`; return the old elements if they are `used`."""
    if Mixed in (type(array), type(index), *map(type, values)):
        return apart(frame, lambda frame, array, index, *values: update(frame, name, used, array, index, values),
                     array, index, *values)  # fmt: skip
    if type(array) is not Array:
        raise NotVectorisedError("of an atomic operation on something other than an array")
    if array.frozen:
        raise NotVectorisedError("of an atomic operation on constant memory")
    machine, held = frame.lanes.machine, array.store
    place = place_of(frame, array, index)
    # Lanes that share a place make one update each.
    places = place if isinstance(place, np.ndarray) else np.full(frame.width, place)
    # An atomic reads the element before it writes it.
    all_written(held, place)
    held.before_store(machine)
    if array.seen is not None:
        tell(frame, array, places, "atom")
    machine.atomics += 1
    if held.accesses is None:  # local memory
        return _in_order(array, name, places, values, frame.width)
    if not used and name in COMMUTING and array.dtype.kind in "iu":
        function, kind = COMMUTING[name]
        held.accesses.updated(frame.lanes, places, kind)
        # `at` does every lane's update. An indexed `+=` would do one of those with the same place.
        function.at(held.data, places, converted(values[0], array.dtype, frame.width))
        return None
    # From here on the order counts. After TURN atomics a thread gives way, and `rounds` tells another order.
    if machine.atomics >= TURN:
        raise OrderError("so many atomic operations make the scheduler's threads take turns")
    machine.ordered = True
    if not used and name in ("add", "sub") and array.dtype in (np.float32, np.float64):
        held.accesses.updated(frame.lanes, places, "float sum")
        numbers = np.broadcast_to(converted(values[0], array.dtype, frame.width), frame.width)
        machine.pending.append(
            Pending(
                name,
                held.accesses.whole,
                held.data,
                frame.lanes.ids,
                places,
                numbers,
                machine.rounds.of(frame.lanes.ids),
            )
        )
        return None
    # Gives up if an earlier atomic has touched these elements: its order to this one would decide a result.
    held.accesses.updated(frame.lanes, places, "ordered")
    order = machine.rounds.order(frame.lanes.ids)
    if order is None:
        return _in_order(array, name, places, values, frame.width)
    old = _in_order(array, name, places[order], tuple(take(value, order) for value in values), frame.width)
    # The inverse of a permutation is its argsort: each lane gets the number that it has found.
    return take(old, np.argsort(order))


def _in_order(array: Array, name: str, places: np.ndarray, values: tuple, width: int) -> Any:
    """Do an operation lane after lane, with the scheduler's own code; return the old elements."""
    # A view with the scheduler's loads and stores, which widen and wrap integers.
    memory = as_kernel_array(array.store.data)
    method = getattr(ONE_BY_ONE, name)
    columns = zip(*(scalars(value, width) for value in values), strict=True)
    old = [method(memory, place, *row) for place, row in zip(places.tolist(), columns, strict=True)]
    return collect(old) if width > 1 else old[0]


def settle(machine: Any, among: Any) -> None:
    """Do the pending sums of those stores' accesses that `among` contains, in the scheduler's order."""
    groups: dict[int, list[Pending]] = {}
    for one in machine.pending:
        if one.accesses in among:
            groups.setdefault(id(one.accesses), []).append(one)
    machine.pending = [one for one in machine.pending if one.accesses not in among]
    for group in groups.values():
        # One NumPy function does all sums of an array, so that `at` keeps to their order.
        if len({one.name for one in group}) > 1:
            raise NotVectorisedError("float sums and differences go to one array")
        ids, places, numbers = (
            np.concatenate([getattr(one, name) for one in group]) for name in ("ids", "places", "numbers")
        )
        # The lanes of one statement that are all in one pass and round are in the scheduler's order already.
        if len(group) > 1 or not all(isinstance(part, int) for part in group[0].moment):
            lengths = [len(one.ids) for one in group]
            # The last key: of the sums of one lane in one round, the earlier statement comes first.
            turn = np.repeat(np.arange(len(group)), lengths)
            moments = [[np.broadcast_to(part, len(one.ids)) for part in one.moment] for one in group]
            passes, rounds = map(np.concatenate, zip(*moments, strict=True))
            order = np.lexsort((turn, *machine.rounds.keys(ids, (passes, rounds))))
            places, numbers = places[order], numbers[order]
        # One by one and in this order, each sum rounded to the array's dtype, as in the scheduler.
        COMMUTING[group[0].name][0].at(group[0].data, places, numbers)
