"""Load and store elements of arrays: from an index of each lane to its element's place in a store.

A lane outside of an array makes the engine give up: the scheduler then finds the first such thread, and says so.
"""

from itertools import repeat
from typing import Any

import numpy as np

from normlab.sim.language.integers import CASTS_OF_DTYPES
from normlab.sim.vectorised.arithmetic import alternatives, truth
from normlab.sim.vectorised.casts import float_to_integer
from normlab.sim.vectorised.frames import Frame
from normlab.sim.vectorised.memory import Array, Record, Records, loaded
from normlab.sim.vectorised.proof import all_written, not_negative
from normlab.sim.vectorised.refusal import NotVectorisedError
from normlab.sim.vectorised.values import (
    BOOLEANS,
    HOLDERS,
    Mixed,
    Vector,
    element,
    merge,
    scalars,
    take,
    varies,
)

KEPT_MOVES = 8  # sums of an index's parts that a frame keeps


def load_item(frame: Frame, array: Any, index: Any) -> Any:
    """Return `array[index]`: of a tuple, an element or a view of an array, a record or its field."""
    if type(array) is Records:
        return array.field(index) if type(index) is str else record_at(array, index)
    if type(array) is Record:
        array, index = array.records.field(index), array.index
    if type(array) is Mixed or type(index) is Mixed:
        return apart(frame, load_item, array, index)
    if type(array) is not Array:
        # A tuple, whose entries may differ in type, or a range.
        if type(index) is Vector and isinstance(array, tuple):
            return entries(frame, array, index)
        if type(array) is Vector or type(index) is Vector:
            raise NotVectorisedError("lanes ask for different elements of something other than a tuple or an array")
        return array[index]
    if not is_element(array, index):
        # A row or a slice: memory is read when an element of it is named.
        return view_of(frame, array, index)
    place = place_of(frame, array, index)
    if array.seen is not None:
        tell(frame, array, place, "ld")
    return load(frame, array, place)


def store_item(frame: Frame, array: Any, index: Any, value: Any) -> None:
    """Do `array[index] = value`."""
    if type(array) is Records:
        store_record(frame, record_at(array, index), value)
        return
    if type(array) is Record:
        array, index = array.records.field(index), array.index
    if type(array) is Mixed or type(index) is Mixed or type(value) is Mixed:
        apart(frame, store_item, array, index, value)
        return
    if type(array) is not Array:
        raise NotVectorisedError(f"of a store into a {type(array).__name__.lower()}")
    if not is_element(array, index):
        store_elements(frame, view_of(frame, array, index), value)
        return
    place = place_of(frame, array, index)
    store(frame, array, place, value)
    if array.seen is not None:
        tell(frame, array, place, "st")


def entries(frame: Frame, values: tuple, index: Vector) -> Any:
    """Return the entry of a tuple that each lane asks for."""
    position = inside(index, len(values))
    # Only the entries that a lane asks for: the others need not have a type in common with these.
    asked = [(number, np.flatnonzero(position == number)) for number in np.unique(position).tolist()]
    return merge(frame.width, [(places, take(values[number], places)) for number, places in asked], None)


def store_elements(frame: Frame, view: Array, value: Any) -> None:
    """Store one number, or those of an array of the same shape, into all elements of a view."""
    if view.seen is not None or (type(value) is Array and value.shape != view.shape):
        raise NotVectorisedError("of a store of many elements at once")
    indices = list(np.ndindex(view.shape))
    # All loads come before the first store, because the two arrays may overlap.
    numbers = [load_item(frame, value, index) for index in indices] if type(value) is Array else repeat(value)
    for index, number in zip(indices, numbers, strict=False):
        store(frame, view, place_of(frame, view, index), number)


def store_record(frame: Frame, record: Record, value: Any) -> None:
    """Copy all fields of a record of the same type."""
    if type(value) is not Record or value.records.dtype.fields != record.records.dtype.fields:
        raise NotVectorisedError("of a store of something other than such a record")
    fields = zip(record.records.arrays, value.records.arrays, strict=True)
    # A list, so that all fields are loaded before one of them is stored.
    for target, number in [(target, load_item(frame, source, value.index)) for target, source in fields]:
        store_item(frame, target, record.index, number)


def record_at(records: Records, index: Any) -> Record:
    """Return the record at an index of each lane, which is inside the array."""
    parts = parts_of(index)
    if len(parts) != len(records.shape):
        raise NotVectorisedError("of a part of an array of records")
    for part, extent in zip(parts, records.shape, strict=True):
        # A record is named here and read later; an index outside raises here in the scheduler, too.
        inside(part, extent)
    return Record(records, index)


def tell(frame: Frame, array: Array, place: Any, operation: str, width: int = 1) -> None:
    """Tell the launch's observer that each lane accesses `width` elements from its place on."""
    frame.lanes.machine.launch.tell("accessed", frame, array, place, operation, width)


def apart(frame: Frame, function: Any, *arguments: Any) -> Any:
    """Call `function(frame, *arguments)` for the lanes of each combination of types by themselves."""
    pieces, launch = [], frame.lanes.machine.launch
    told = launch.told
    for places, given in alternatives(arguments, frame.width):
        launch.told = told  # one statement of all lanes: to an observer the pieces are one access
        pieces.append((places, function(frame.child(places), *given)))
    return merge(frame.width, pieces, None)


def is_element(array: Array, index: Any) -> bool:
    """Return whether an index names one element, and not several."""
    if type(index) is not tuple:
        return len(array.shape) == 1 and index is not Ellipsis and type(index) is not slice
    return len(index) == len(array.shape) and not any(part is Ellipsis or type(part) is slice for part in index)


def parts_of(index: Any) -> tuple:
    """Return an index's parts, one per dimension; of integers of several types only the numbers count."""
    parts = index if type(index) is tuple else (index,)
    # `min(row, rows - 1)` has the type of the one or of the other, so an index may be a Mixed.
    if Mixed in map(type, parts):
        return tuple(part.integers() if type(part) is Mixed else part for part in parts)
    return parts


def place_of(frame: Frame, array: Array, index: Any, based: bool = True) -> Any:
    """Return the element's place in the array's store: an int, or an array of one place for each lane.

    Not `based`: count from the beginning of the block's or the lane's own array.
    """
    parts = parts_of(index)
    if frame.lanes.machine.launch.proof is not None:
        # `sanitize` reports a negative index, though NumPy and Numba count it from the end.
        for part in parts:
            not_negative(part)
    # An offset that varies is added after the loop: until then the uniform parts add up as Python ints.
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
    # With nothing to add, the kept sum itself is returned. Nobody writes into places.
    return moved + total if isinstance(total, np.ndarray) or total else moved


def _moved(frame: Frame, varying: list, base: Any) -> Any:
    """Return how far the parts of an index that vary, and the beginning of a block's array, move the place."""
    # A loop often moves the other parts alone, so the last few sums are kept, and with them the vectors that they were
    # made of: as long as these live, no other object has their ids.
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
        del known[next(iter(known))]  # the oldest
    known[key] = [part for part, _, _ in varying], total
    return total


def inside(part: Any, extent: int) -> Any:
    """Return an index between 0 and `extent`; one from the end counts from there, as in NumPy."""
    if type(part) is Vector:
        if HOLDERS[part.kind].kind not in "iu":
            raise NotVectorisedError(f"of an index of the type {part.kind.__name__}")
        # The usual index is made of `cuda.grid` and sizes, whose bounds are known: no number is looked at.
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
        # Without a record: if a store follows, the launch begins anew (Store.before_store).
        held.was_read = True
    if not isinstance(place, np.ndarray):
        # All lanes read one element, so the value stays uniform.
        return element(array.kind, held.data, place)
    return loaded(array, held.data.take(place))


def store(frame: Frame, array: Array, place: Any, value: Any) -> None:
    """Store a value at `place`, converted as the scheduler's arrays convert it."""
    held = array.store
    if array.frozen:
        raise NotVectorisedError("of a store into constant memory")
    # Before anything is written: this keeps the old contents, and begins the log.
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
        if data.dtype.kind == "c" and dtype.kind != "c":
            raise NotVectorisedError("of a store of complex numbers as others")
        if dtype.kind in "iu" and data.dtype.kind not in "iub":
            return float_to_integer(data, dtype)  # saturates; `astype` would depend on the CPU
        if dtype.kind == "b":
            return truth(value, width)
        if (
            # NumPy stores a Python int by way of float64, which rounds a large one twice, and `astype` rounds once.
            value.kind is int
            and dtype.kind in "fc"
            and not -(1 << 53) <= value.bounds()[0] <= value.bounds()[1] <= 1 << 53
        ):
            raise NotVectorisedError("an index beyond 2**53 becomes a float")
        return data.astype(dtype)
    if type(value) not in HOLDERS or (HOLDERS[type(value)].kind == "c" and dtype.kind != "c"):
        raise NotVectorisedError(f"of a store of a {type(value).__name__} into an array of {dtype}")
    if dtype.kind in "iu" and type(value) not in BOOLEANS:
        return np.array(int(CASTS_OF_DTYPES[dtype](value)), dtype)[()]
    # NumPy's own store of one number into an array, as the scheduler's arrays do it.
    made = np.empty(1, dtype)
    made[0] = value
    return made[0]


def view_of(frame: Frame, array: Array, index: Any) -> Array:
    """Return the part of an array that an index with fewer parts, or with slices, names."""
    parts = list(index) if type(index) is tuple else [index]
    # Without the Vectors, which refuse to be compared.
    if Ellipsis in [part for part in parts if type(part) is not Vector] or len(parts) > len(array.shape):
        raise NotVectorisedError("of an index with an ellipsis or too many parts")
    # An axis without a part is whole, as in NumPy.
    parts += [slice(None)] * (len(array.shape) - len(parts))
    shape, strides, offset = [], [], array.offset
    for part, extent, stride in zip(parts, array.shape, array.strides, strict=True):
        if type(part) is slice:
            begin, length, step = range_of(part, extent, frame.width)
            shape.append(length)
            strides.append(stride * step)
            offset = offset + begin * stride
        else:
            if frame.lanes.machine.launch.proof is not None:
                not_negative(part)
            offset = offset + inside(part, extent) * stride
    return array.viewed(tuple(shape), tuple(strides), offset)


def range_of(part: slice, extent: int, width: int) -> tuple[Any, int, int]:
    """Return where a slice begins in each lane, and its length and step, which all lanes have in common."""
    bounds = part.start, part.stop, part.step
    columns = zip(*(scalars(bound, width if varies(bounds) else 1) for bound in bounds), strict=True)
    # Python's own rules of slices, for each lane. Beginnings may differ, but a shape belongs to all lanes.
    ranges = [range(*slice(*(None if b is None else int(b) for b in row)).indices(extent)) for row in columns]
    if len({(len(one), one.step) for one in ranges}) > 1:
        raise NotVectorisedError("the lanes slice an array in different ways")
    begins = [one.start for one in ranges]
    return np.array(begins) if len(begins) > 1 else begins[0], len(ranges[0]), ranges[0].step
