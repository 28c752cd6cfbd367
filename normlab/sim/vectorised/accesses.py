"""Load and store elements of arrays: from an index of each lane to its element's place in a store.

A lane outside of an array makes the engine give up: the scheduler then finds the first such thread, and says so.
"""

from typing import Any

import numpy as np

from normlab.sim.language.integers import INTEGER_CASTS
from normlab.sim.vectorised.arithmetic import truth
from normlab.sim.vectorised.casts import float_to_integer
from normlab.sim.vectorised.frames import Frame
from normlab.sim.vectorised.memory import Array, Record, Records, loaded
from normlab.sim.vectorised.proof import all_written, not_negative
from normlab.sim.vectorised.refusal import NotVectorisedError
from normlab.sim.vectorised.values import (
    BOOLEANS,
    HOLDERS,
    SIGNED,
    Mixed,
    Unsigned64,
    Vector,
    element,
    kind_of,
    merge,
    take,
)

KEPT_MOVES = 8
INTEGERS = (*SIGNED, np.uint64, Unsigned64)


def load_item(frame: Frame, array: Any, index: Any) -> Any:
    """Return `array[index]`: of a tuple, an element or a view of an array, a record or its field."""
    if type(array) is Records:
        return record_at(frame, array, index)
    if type(array) is Record:
        return load(frame, array.field(index), place_of(frame, array.field(index), array.index))
    if type(array) is Mixed or type(index) is Mixed:
        return apart(frame, load_item, array, index)
    if type(array) is not Array:
        if type(array) is Vector or type(index) is Vector:
            raise NotVectorisedError("lanes ask for different elements of a tuple")
        return array[index]
    if not is_element(array, index):
        return view_of(frame, array, index)
    place = place_of(frame, array, index)
    if array.seen is not None:
        tell(frame, array, place, "ld")
    return load(frame, array, place)


def store_item(frame: Frame, array: Any, index: Any, value: Any) -> None:
    """Do `array[index] = value`."""
    if type(array) is Record:
        field = array.field(index)
        if kind_of(value) is not field.kind and (kind_of(value), field.kind) != (Unsigned64, np.uint64):
            raise NotVectorisedError("NumPy converts a number to a record's field by rules of its own")
        store(frame, field, place_of(frame, field, array.index), value)
        return
    if type(array) is Mixed or type(index) is Mixed or type(value) is Mixed:
        apart(frame, store_item, array, index, value)
        return
    if type(array) is not Array or not is_element(array, index):
        raise NotVectorisedError("of a store of many elements at once")
    place = place_of(frame, array, index)
    store(frame, array, place, value)
    if array.seen is not None:
        tell(frame, array, place, "st")


def record_at(frame: Frame, records: Records, index: Any) -> Record:
    """Return the record at an index of each lane, which is inside the array."""
    parts = index if type(index) is tuple else (index,)
    if len(parts) != len(records.shape) or any(type(part) is Mixed for part in parts):
        raise NotVectorisedError("of a part of an array of records")
    for part, extent in zip(parts, records.shape, strict=True):
        inside(part, extent)
    return Record(records, index)


def tell(frame: Frame, array: Array, place: Any, operation: str, width: int = 1) -> None:
    """Tell the launch's observer that each lane accesses `width` elements from its place on."""
    launch = frame.lanes.machine.launch
    launch.watch.accessed(frame, array, place, operation, width)
    launch.told += 1


def apart(frame: Frame, function: Any, *arguments: Any) -> Any:
    """Call `function(frame, *arguments)` for the lanes of each combination of types by themselves."""
    labels = np.zeros(frame.width, np.int64)
    for argument in arguments:
        if type(argument) is Mixed:
            if (argument.choice < 0).any():
                raise NotVectorisedError("a variable is read in lanes that have not assigned it")
            labels = labels * len(argument.values) + argument.choice
    pieces, launch = [], frame.lanes.machine.launch
    told = launch.told
    for label in np.unique(labels):
        places = np.flatnonzero(labels == label)
        given = [take(argument, places) for argument in arguments]
        launch.told = told  # one statement of all lanes: to an observer the pieces are one access
        pieces.append((places, function(frame.child(places), *given)))
    return merge(frame.width, pieces, None)


def is_element(array: Array, index: Any) -> bool:
    """Return whether an index names one element, and not several."""
    parts = index if type(index) is tuple else (index,)
    return len(parts) == len(array.shape) and not any(part is Ellipsis or type(part) is slice for part in parts)


def place_of(frame: Frame, array: Array, index: Any, based: bool = True) -> Any:
    """Return the element's place in the array's store: an int, or an array of one place for each lane.

    Not `based`: count from the beginning of the block's or the lane's own array.
    """
    parts = index if type(index) is tuple else (index,)
    if frame.lanes.machine.launch.proof is not None:
        for part in parts:
            not_negative(part)
    total = 0 if isinstance(array.offset, np.ndarray) else array.offset
    varying = []
    for part, extent, stride in zip(parts, array.shape, array.strides, strict=True):
        if type(part) is Vector:
            varying.append((part, extent, stride))
        else:
            total += inside(part, extent) * stride
    base = array.base if based else None
    if isinstance(array.offset, np.ndarray):
        total = total + array.offset
    if not varying and base is None:
        return total
    moved = _moved(frame, varying, base)
    return moved + total if isinstance(total, np.ndarray) or total else moved


def _moved(frame: Frame, varying: list, base: Any) -> Any:
    """Return how far the parts of an index that vary, and the beginning of a block's array, move the place.

    A loop often moves the other parts alone, so the last few sums are kept with the vectors that they were made of.
    """
    key = (base, *[(id(part), extent, stride) for part, extent, stride in varying])
    known = frame.lanes.moves
    if key in known:
        return known[key][1]
    total = frame.lanes.numbers(base) if base is not None else None
    for part, extent, stride in varying:
        position = inside(part, extent)
        term = position if stride == 1 else position * stride
        total = term if total is None else total + term
    if len(known) >= KEPT_MOVES:
        del known[next(iter(known))]
    known[key] = [part for part, _, _ in varying], total
    return total


def inside(part: Any, extent: int) -> Any:
    """Return an index between 0 and `extent`; one from the end counts from there, as in NumPy."""
    if type(part) is Vector:
        if part.kind not in INTEGERS:
            raise NotVectorisedError(f"of an index of the type {part.kind.__name__}")
        if part.low is not None and part.low >= 0 and part.high < extent:  # type: ignore[operator]
            return part.data
        data = part.data
        # As an unsigned number a negative index is larger than any extent: one comparison finds both.
        if int(data.view(np.uint64).max()) < extent:
            return data if data.dtype == np.int64 else data.view(np.int64)
        if data.dtype == np.uint64 or int(data.min()) < -extent or int(data.max()) >= extent:
            raise NotVectorisedError("an index is out of bounds")
        return np.where(data < 0, data + extent, data)
    if not isinstance(part, (int, np.integer)) or isinstance(part, bool):
        raise NotVectorisedError(f"of an index of the type {type(part).__name__}")
    position = int(part)
    if not -extent <= position < extent:
        raise NotVectorisedError("an index is out of bounds")
    return position + extent if position < 0 else position


def load(frame: Frame, array: Array, place: Any) -> Any:
    """Return the elements at `place`: a scalar for an int, one for each lane for an array."""
    held = array.store
    all_written(held, place)
    if held.accesses is not None:
        held.accesses.read(frame.lanes, place)
    else:
        held.was_read = True
    if not isinstance(place, np.ndarray):
        return element(array.kind, held.data, place)
    return loaded(array, held.data.take(place))


def store(frame: Frame, array: Array, place: Any, value: Any) -> None:
    """Store a value at `place`, converted as the scheduler's arrays convert it."""
    held = array.store
    if array.frozen:
        raise NotVectorisedError("of a store into constant memory")
    held.before_store(frame.lanes.machine)
    numbers = converted(value, array.dtype, frame.width)
    if held.accesses is not None:
        held.accesses.written(frame.lanes, place, numbers)
    if not isinstance(place, np.ndarray) and isinstance(numbers, np.ndarray) and numbers.ndim:
        numbers = numbers[-1]  # all lanes store at one place: equal numbers, or a race
    held.data[place] = numbers
    if held.written is not None:
        held.written[place] = held.whole


def converted(value: Any, dtype: np.dtype, width: int) -> Any:
    """Return a value's numbers as elements of `dtype`."""
    if type(value) is Vector:
        data = value.data
        if data.dtype == dtype:
            return data
        if dtype.kind in "iu" and data.dtype.kind not in "iub":
            return float_to_integer(data, dtype)
        if dtype.kind == "b":
            return truth(value, width)
        if (
            value.kind is int
            and dtype.kind == "f"
            and not -(1 << 53) <= value.bounds()[0] <= value.bounds()[1] <= 1 << 53
        ):
            raise NotVectorisedError("an index beyond 2**53 becomes a float")
        return data.astype(dtype)
    if type(value) not in HOLDERS:
        raise NotVectorisedError(f"of a store of a {type(value).__name__}")
    if dtype.kind in "iu" and type(value) not in BOOLEANS:
        return np.array(int(INTEGER_CASTS[dtype.name](value)), dtype)[()]
    made = np.empty(1, dtype)
    made[0] = value
    return made[0]


def view_of(frame: Frame, array: Array, index: Any) -> Array:
    """Return the part of an array that an index with fewer parts, or with slices, names."""
    parts = list(index) if type(index) is tuple else [index]
    if Ellipsis in [part for part in parts if type(part) is not Vector] or len(parts) > len(array.shape):
        raise NotVectorisedError("of an index with an ellipsis or too many parts")
    parts += [slice(None)] * (len(array.shape) - len(parts))
    shape, strides, offset = [], [], array.offset
    for part, extent, stride in zip(parts, array.shape, array.strides, strict=True):
        if type(part) is slice:
            bounds = (part.start, part.stop, part.step)
            if any(type(bound) in (Vector, Mixed) for bound in bounds):
                raise NotVectorisedError("the lanes slice an array in different ways")
            begin, end, step = slice(*(None if b is None else int(b) for b in bounds)).indices(extent)
            shape.append(len(range(begin, end, step)))
            strides.append(stride * step)
            offset = offset + begin * stride
        else:
            if frame.lanes.machine.launch.proof is not None:
                not_negative(part)
            offset = offset + inside(part, extent) * stride
    return array.viewed(tuple(shape), tuple(strides), offset)
