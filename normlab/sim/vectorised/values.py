"""Define the engine's values: one array for a variable of many threads, or one scalar for all of them.

A value in a frame (frames.py) of `width` lanes is one of these:

- a scalar, a tuple, an array (memory.py), None: *uniform*, the same object for every lane;
- a `Vector`: an element for each lane, all of one scalar type;
- a `Mixed`: lanes whose values differ in type, as after `s = 0.0` and then, in some lanes only, `s = x[i]` of float32.

The scalar types are those of the scheduler's threads (language/integers.py): a Python int for an index, np.int64, an
integer that remembers its width, np.float32, … The type decides what an operator does, so a `Vector` keeps it as
`kind`, beside the NumPy array that holds the numbers.
"""

from typing import Any

import ml_dtypes
import numpy as np

from normlab.sim.language.integers import NARROW, Boolean, Unsigned64, as_int64
from normlab.sim.vectorised.refusal import NotVectorisedError

# Scalar type → the dtype that holds it. A narrow integer (`NARROW`) is held in 64 bits, as in the scheduler's threads.
HOLDERS: dict[type, np.dtype] = {
    int: np.dtype(np.int64),
    bool: np.dtype(np.bool_),
    float: np.dtype(np.float64),
    complex: np.dtype(np.complex128),
    Unsigned64: np.dtype(np.uint64),
    Boolean: np.dtype(np.int64),
    ml_dtypes.bfloat16: np.dtype(ml_dtypes.bfloat16),
    **{kind: np.dtype(np.int64) for kind in NARROW.values()},
    **{
        kind: np.dtype(kind)
        for kind in (np.bool_, np.int64, np.float16, np.float32, np.float64, np.complex64, np.complex128)
    },
}
BOOLEANS = (bool, np.bool_)
COMPLEX = (np.complex64, np.complex128)
SIGNED = (int, np.int64, Boolean, *NARROW.values())  # the types whose numbers an int64 holds
# An element of a Vector's array becomes a scalar of these types by a call with a Python number. An element of any other
# type but Unsigned64, which is called with NumPy's number, is the scalar already.
_FROM_PYTHON = (int, bool, float, complex, Boolean, *NARROW.values())
_REBUILT = (*_FROM_PYTHON, Unsigned64)


class Unbound:
    """The value of a variable that has not been assigned yet. The class itself is used, there are no instances."""


class Vector:
    """One number for each lane of a frame, all of the scalar type `kind`. Never changed after it is made.

    `low`, `high`: for the kind int, bounds of all numbers if they are known. A Python int grows without end, and an
    int64 overflows: from the bounds of its operands an operation knows that it does not. An index whose bounds lie
    inside the array needs no check of its numbers.
    """

    __slots__ = ("data", "high", "kind", "low")

    def __init__(self, kind: type, data: np.ndarray, low: int | None = None, high: int | None = None):
        """Hold `data`, which has the dtype HOLDERS[kind]."""
        self.kind, self.data, self.low, self.high = kind, data, low, high

    def bounds(self) -> tuple[int, int]:
        """Return bounds of the numbers, measured if they are not known."""
        # The numbers never change, so bounds that have been measured stay right.
        if self.low is None:
            self.low, self.high = int(self.data.min()), int(self.data.max())
        return self.low, self.high  # type: ignore[return-value]

    def __bool__(self) -> bool:
        """Refuse: Python would ask for the truth of all lanes at once."""
        raise NotVectorisedError("the lanes' values meet a construct of Python that takes one value")

    __index__ = __int__ = __float__ = __len__ = __iter__ = __bool__
    # `a == b` of two tuples would compare the objects, and not the lanes' numbers.
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = lambda self, other: bool(self)
    __hash__ = None  # type: ignore[assignment]


class Mixed:
    """A value of several types: lane `l` has `values[choice[l]]`, and no value at all where `choice` is -1."""

    __slots__ = ("choice", "values")

    def __init__(self, choice: np.ndarray, values: list[Any]):
        """Hold `values`, each as wide as the frame or uniform."""
        self.choice, self.values = choice, values

    def integers(self) -> Vector:
        """Return the numbers as 64-bit integers, where each lane has an integer of some type."""
        if (self.choice < 0).any():
            raise NotVectorisedError("a variable is read in lanes that have not assigned it")
        data = np.empty(len(self.choice), np.int64)
        for number, value in enumerate(self.values):
            kind = kind_of(value)
            numbers = value.data if type(value) is Vector else np.asarray(value)
            # A uint64 is refused: as an int64 a large one would be negative, and so an index from the array's end.
            if kind not in HOLDERS or HOLDERS[kind].kind not in "iu" or not np.can_cast(numbers.dtype, np.int64):
                raise NotVectorisedError(f"of an index of the type {kind.__name__}")
            np.copyto(data, numbers, where=self.choice == number)
        return Vector(np.int64, data)

    __bool__ = __index__ = __int__ = __float__ = __len__ = __iter__ = Vector.__bool__
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = Vector.__eq__
    __hash__ = None  # type: ignore[assignment]


def varies(value: Any) -> bool:
    """Return whether a value may differ between the lanes, as views of an array do that begin at each lane's place."""
    kind = type(value)
    if kind is Vector or kind is Mixed or type(getattr(value, "offset", None)) is np.ndarray:
        return True
    return isinstance(value, tuple) and any(map(varies, value))


def rebuilt(like: tuple, parts: Any) -> Any:
    """Return a tuple of the type of `like`, which may have named fields."""
    return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)


def kind_of(value: Any) -> type:
    """Return the scalar type of a value."""
    return value.kind if type(value) is Vector else type(value)


def lanes_as_int64(value: Any) -> Any:
    """Return Python ints as int64, anything else as it is."""
    return Vector(np.int64, value.data) if type(value) is Vector and value.kind is int else as_int64(value)


def element(kind: type, data: np.ndarray, lane: int) -> Any:
    """Return one lane's number as a scalar."""
    if kind in _FROM_PYTHON:
        return kind(data[lane].item())
    return Unsigned64(data[lane]) if kind is Unsigned64 else data[lane]


def scalars(value: Any, width: int) -> list:
    """Return a value's scalars, one for each lane."""
    if isinstance(value, tuple) and varies(value):
        return list(zip(*(scalars(part, width) for part in value), strict=True))
    if type(value) is Mixed:
        columns = [scalars(part, width) for part in value.values]
        if (value.choice < 0).any():
            raise NotVectorisedError("a variable is read in lanes that have not assigned it")
        return [columns[choice][lane] for lane, choice in enumerate(value.choice.tolist())]
    if type(value) is not Vector:
        return [value] * width
    # `tolist` gives Python's numbers. The types of _REBUILT are made from these; the rest are NumPy's own, in the
    # array.
    if value.kind is int or value.kind is bool:
        return value.data.tolist()
    if value.kind in _REBUILT:
        return [value.kind(number) for number in value.data.tolist()]
    return list(value.data)


def collect(found: list) -> Any:
    """Return the value whose lanes have these scalars: the reverse of `scalars`."""
    kinds = set(map(type, found))
    # A function may give several types: `max` of an int and an int64 gives one of its operands.
    if len(kinds) > 1:
        parts = [(np.array([n for n, one in enumerate(found) if type(one) is kind]), kind) for kind in kinds]
        return merge(
            len(found), [(places, collect([found[place] for place in places])) for places, kind in parts], None
        )
    (kind,) = kinds
    if kind is tuple:
        if len(set(map(len, found))) > 1:
            raise NotVectorisedError("lanes have tuples of different lengths")
        return tuple(collect(list(column)) for column in zip(*found, strict=True))
    if kind is type(None):
        return None
    if kind not in HOLDERS:
        raise NotVectorisedError(f"a function gives a {kind.__name__} in each lane")
    try:
        # Raises OverflowError for a Python int that has outgrown 64 bits.
        return Vector(kind, np.array(found, HOLDERS[kind]))
    except OverflowError:
        raise NotVectorisedError("an index leaves 64 bits") from None


def take(value: Any, places: np.ndarray) -> Any:
    """Return a value in the frame of those lanes that stand at `places`; for a single lane, its scalar."""
    kind = type(value)
    if kind is Vector:
        # A frame of one lane has scalars only: its operators are the scheduler's, which are faster than NumPy's for
        # one.
        if len(places) == 1:
            return element(value.kind, value.data, places[0])
        # The bounds of all numbers hold for some of them.
        return Vector(value.kind, value.data.take(places), value.low, value.high)
    if kind is Mixed:
        choice = value.choice.take(places)
        first = choice[0]
        # Lanes of one type have a plain value again, so few operators ever meet a Mixed.
        if (choice == first).all():
            return take(value.values[first], places) if first >= 0 else Unbound
        return Mixed(choice, [take(part, places) for part in value.values])
    if isinstance(value, tuple) and any(map(varies, value)):
        return rebuilt(value, [take(part, places) for part in value])
    return value.taken(places) if hasattr(value, "taken") else value  # an array's view, or a uniform value


def same(one: Any, other: Any) -> bool:
    """Return whether two uniform values are the same to every operation: in type and in bits."""
    if one is other:
        return True
    # 1, 1.0 and True are equal to Python, and not to an operator that looks at types.
    if type(one) is not type(other) or type(one) not in HOLDERS:
        return False
    if isinstance(one, np.generic):
        return one.tobytes() == other.tobytes()
    # repr tells 0.0 from -0.0, and lets a NaN equal itself.
    return repr(one) == repr(other) if type(one) in (float, complex) else one == other


Piece = tuple[Any, Any]  # (places of some lanes, None for all of them; the value of these lanes)


def merge(width: int, pieces: list[Piece], old: Any, complete: bool = True) -> Any:
    """Return the value of `width` lanes of which the lanes of each piece have the piece's value.

    `complete`: the pieces cover all lanes; else the others keep `old`. No lane is in two pieces.
    """
    # In front of the pieces, which are then written over it.
    if not complete:
        pieces = [(None, old), *pieces]
    first = pieces[0][1]
    if len(pieces) == 1 and pieces[0][0] is None:
        return first
    # What all lanes share again stays one scalar, and costs one operation instead of one for each lane.
    if all(not varies(value) and same(value, first) for _, value in pieces):
        return first
    kinds = {kind_of(value) for _, value in pieces}
    if len(kinds) == 1 and kind_of(first) in HOLDERS:
        return _merged_numbers(width, kind_of(first), pieces)
    tuples = len(kinds) == 1 and isinstance(first, tuple)
    if tuples and len({len(value) for _, value in pieces}) == 1:
        columns = zip(*(value for _, value in pieces), strict=True)
        places = [place for place, _ in pieces]
        return rebuilt(first, [merge(width, list(zip(places, column, strict=True)), None) for column in columns])
    return _mixed(width, pieces)


def _merged_numbers(width: int, kind: type, pieces: list[Piece]) -> Vector:
    """Return pieces of one scalar type as one array."""
    # Together the pieces cover all lanes, so none of this garbage stays.
    data = np.empty(width, HOLDERS[kind])
    for places, value in pieces:
        numbers = value.data if type(value) is Vector else value
        if places is None:
            data[...] = numbers
        else:
            data[places] = numbers
    if kind is not int:
        return Vector(kind, data)
    # From the pieces' own bounds, or none: to measure here would read numbers whose bounds may never be asked for.
    bounds: list = [(value.low, value.high) if type(value) is Vector else (value, value) for _, value in pieces]
    if any(low is None for low, _ in bounds):
        return Vector(kind, data)
    return Vector(kind, data, min(low for low, _ in bounds), max(high for _, high in bounds))


def _mixed(width: int, pieces: list[Piece]) -> Mixed:
    """Return the value of lanes whose pieces have several types: pieces of one type share an entry of a `Mixed`."""
    choice = np.full(width, -1, np.int8)  # -1: no value yet
    groups: list[list[Piece]] = []
    for places, value in pieces:
        if value is Unbound:
            continue
        # Taken apart, so that an entry of a Mixed is never a Mixed itself.
        for one, inner in _alternatives(places, value):
            label = next((n for n, group in enumerate(groups) if _together(group[0][1], inner)), len(groups))
            if label == len(groups):
                if label > 100:  # `choice` is an int8
                    raise NotVectorisedError("a variable has too many types")
                groups.append([])
            choice[slice(None) if one is None else one] = label
            groups[label].append((one, inner))
    values = []
    for group in groups:
        # A value that is uniform, or as wide as the frame, is an entry as it is.
        whole = len(group) == 1 and (group[0][0] is None or not varies(group[0][1]))
        values.append(group[0][1] if whole else _spread(width, group))
    return Mixed(choice, values)


def _spread(width: int, group: list[Piece]) -> Any:
    """Return the pieces of a group as one value of `width` lanes. What it has in the other lanes is never read."""
    if isinstance(group[0][1], tuple):
        places = [one for one, _ in group]
        columns = zip(*(value for _, value in group), strict=True)
        return rebuilt(group[0][1], [_spread(width, list(zip(places, column, strict=True))) for column in columns])
    kind = kind_of(group[0][1])
    # No number: None, an array, or a view of one that begins elsewhere in each lane.
    if kind not in HOLDERS:
        if len(group) == 1 and varies(group[0][1]):
            return group[0][1].spread(group[0][0], width)
        if all(same(value, group[0][1]) for _, value in group):
            return group[0][1]
        raise NotVectorisedError(f"lanes have different values of the type {kind.__name__}")
    data = np.zeros(width, HOLDERS[kind])
    for one, value in group:
        data[slice(None) if one is None else one] = value.data if type(value) is Vector else value
    return Vector(kind, data)


def _alternatives(places: Any, value: Any) -> list[Piece]:
    """Return the pieces that a piece with a `Mixed` value consists of."""
    if type(value) is not Mixed:
        return [(places, value)]
    found = []
    for label, part in enumerate(value.values):
        inside = np.flatnonzero(value.choice == label)
        if len(inside):
            found.append((inside if places is None else places[inside], take(part, inside)))
    return found


def _together(one: Any, other: Any) -> bool:
    """Return whether two values can share an entry of a `Mixed`."""
    if isinstance(one, tuple) and type(one) is type(other):
        return len(one) == len(other) and all(map(_together, one, other))
    kind = kind_of(one)
    return (kind is kind_of(other) and kind in HOLDERS) or same(one, other)
