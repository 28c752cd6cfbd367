"""Run the functions that a kernel calls: device functions, `cuda` and what it holds, math.

`attribute` and `call` find out what an attribute and a call mean. The objects are the scheduler's
(language/rewrite.py): `cuda` is the launch's namespace, a device function is the rewritten function. Where one of them
would ask for the running thread, the functions here answer for all lanes.
"""

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from types import FunctionType, MethodType
from typing import Any

import numpy as np

from normlab.sim.language.arithmetic import int64s
from normlab.sim.language.arrays import NOT_NUMBAS, dtype_of, shape_of
from normlab.sim.language.integers import BOOLS
from normlab.sim.language.operators import function_tree
from normlab.sim.language.rewrite import IndexByName
from normlab.sim.machine.api import Cuda, GridGroup
from normlab.sim.machine.atomics import Atomics
from normlab.sim.machine.memory import (
    DYNAMIC_POISON,
    MAX_SHARED,
    MAX_STATIC_SHARED,
    ConstantMemory,
    LocalMemory,
    SharedMemory,
    check_local,
)
from normlab.sim.vectorised import accesses, atomics, functions, values, warps
from normlab.sim.vectorised.arithmetic import binary, by_alternatives, truth
from normlab.sim.vectorised.frames import Frame, Inner
from normlab.sim.vectorised.memory import Array, Record, Records, Walk, contiguous_strides, length_of
from normlab.sim.vectorised.refusal import NotVectorisedError
from normlab.sim.vectorised.values import COMPLEX, Mixed, Vector, element, kind_of, merge, rebuilt, take, varies

# --- attributes ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Index:
    """`cuda.threadIdx` or `cuda.blockIdx`, before its axis is asked for."""

    name: str


@dataclass(frozen=True)
class Method:
    """A method of a value that the lanes have."""

    run: Callable


def attribute(frame: Frame, value: Any, name: str) -> Any:
    """Return `value.name`."""
    kind = type(value)
    if kind is Cuda:
        if name in ("threadIdx", "blockIdx"):
            return Index(name)
        if name == "laneid":
            return frame.lanes.special("laneid")
        # Each belongs to the one thread that the scheduler runs.
        if name in ("current", "grid_run", "observer"):
            raise NotVectorisedError(f"of cuda.{name}")
    elif kind is Index or kind is IndexByName:  # `cuda.threadIdx.x`, or `threadIdx.x` imported by name
        return frame.lanes.special(f"{value.name if kind is Index else value._name}.{name}")
    elif kind is Array:
        return _array_attribute(value, name)
    elif kind is Records:
        if name in ("shape", "size"):
            return value.shape if name == "shape" else prod(value.shape)
        if hasattr(np.ndarray, name) and name not in NOT_NUMBAS:
            raise NotVectorisedError(f"of an array's {name!r}")
        return value.field(name)
    elif kind is Record:
        return accesses.load_item(frame, value, name)
    elif kind is GridGroup and name == "size":
        return frame.lanes.machine.launch.blocks * frame.lanes.machine.launch.threads
    elif name == "conjugate":
        return Method(lambda: _part_of_complex(name, value, frame.width))
    elif name in ("real", "imag") and kind in (Vector, Mixed):
        return _part_of_complex(name, value, frame.width)
    elif kind is Vector or kind is Mixed or (isinstance(value, tuple) and name not in getattr(kind, "_fields", ())):
        raise NotVectorisedError(f"of the attribute {name!r} of a number that varies")
    # The rest is the host's, and so the same for all lanes: a module's name, `cuda.blockDim`, a tuple's field.
    found = getattr(value, name)
    return frame.lanes.machine.outer(found, name) if isinstance(found, np.ndarray) else found


def _part_of_complex(name: str, value: Any, width: int) -> Any:
    """Return the real part, the imaginary part or the conjugate of complex numbers."""
    if type(value) is Mixed:
        return by_alternatives(lambda part, width: _part_of_complex(name, part, width), (value,), width)
    if type(value) is not Vector:
        return value.conjugate() if name == "conjugate" else getattr(value, name)
    if value.kind not in (complex, *COMPLEX):
        raise NotVectorisedError(f"of the attribute {name!r} of a {value.kind.__name__}")
    if name == "conjugate":
        return Vector(value.kind, value.data.conj())
    part = np.ascontiguousarray(getattr(value.data, name))  # a part is every second number
    return Vector(float if value.kind is complex else part.dtype.type, part)


def _array_attribute(array: Array, name: str) -> Any:
    if name in ("shape", "size", "dtype"):
        return getattr(array, name)
    if name == "ndim":
        return len(array.shape)
    if name == "T":
        return array.viewed(array.shape[::-1], array.strides[::-1], array.offset)
    if name == "itemsize":
        return array.dtype.itemsize
    if name in ("reshape", "ravel"):
        return Method(lambda *shape: _reshaped(array, shape if name == "reshape" else (array.size,)))
    raise NotVectorisedError(f"of an array's {name!r}")


def _reshaped(array: Array, shape: tuple) -> Array:
    extents = shape_of(shape[0] if len(shape) == 1 else shape)
    if not array.contiguous or prod(extents) != array.size:  # a copy would be needed, or -1 be found out
        raise NotVectorisedError("of a reshaped array")
    return array.viewed(extents, contiguous_strides(extents, array.lane_stride), array.offset)


# --- calls -----------------------------------------------------------------------------------------------------------


@dataclass
class Site:
    """Where a call stands: the lanes that make it, its node, and whether anything is done with its result."""

    frame: Frame
    node: ast.Call
    used: bool


def call(site: Site, function: Any, given: list, named: dict[str, Any]) -> Any:
    """Return `function(*given, **named)` for all lanes of a frame."""
    frame = site.frame
    frame.call.at = site.node  # after the arguments, which may have set it to calls of their own
    if type(function) is Method:
        found = function.run(*given)
    elif type(function) is MethodType:
        found = _method(site, function, given, named)
    # A Python function without a rewritten tree, or with `cuda` bound to it, stands for an intrinsic
    # (language/rewrite.py).
    elif type(function) is partial or (type(function) is FunctionType and function_tree(function.__code__) is None):
        found = _twin(site, function, given, named)
    elif type(function) is FunctionType:
        found = frame.call.inner(function, given, named, frame.lanes)
    elif type(function) is Inner:
        found = frame.call.closure(function, given, named, frame)
    elif isinstance(function, type) and issubclass(function, tuple) and hasattr(function, "_fields"):
        found = function(*given, **named)  # a tuple with named fields
    elif function is len:
        found = length_of(*given)
    elif function is zip or function is enumerate:
        found = _walk(function, given, **named)
    # The same in all lanes: called once.
    elif not any(map(varies, given)) and not named and not any(type(one) is Array for one in given):
        found = _of_scalars(site, function, given)
    elif named:
        raise NotVectorisedError(f"of keyword arguments of {getattr(function, '__name__', function)!r}")
    else:
        found = functions.call(function, tuple(given), frame.width)
    # In a frame of one lane every value is a scalar, as `values.take` makes them.
    return _alone(found) if frame.width == 1 else found


def _walk(function: Any, parts: list, start: int = 0, strict: bool = False) -> Walk:
    """Return what `zip` or `enumerate` walks through."""
    if function is enumerate:
        sequence, *given = parts  # `enumerate(x, 1)` begins at 1
        first = operator.index(*given) if given else start
        return Walk((range(first, first + length_of(sequence)), sequence))
    if strict and len(set(map(length_of, parts))) > 1:  # Python raises
        raise NotVectorisedError("zip gets sequences of different lengths")
    return Walk(tuple(parts))


def _alone(value: Any) -> Any:
    """Return what a frame of one lane has in the place of vectors: scalars."""
    if isinstance(value, tuple):
        return rebuilt(value, [_alone(part) for part in value])
    return element(value.kind, value.data, 0) if type(value) is Vector else value


def _of_scalars(site: Site, function: Any, given: list) -> Any:
    """Return a function of scalars, which is the same in every lane."""
    # Called here are functions of their arguments alone. Another may ask for the running thread, and there is none.
    cast = isinstance(function, functions.IntegerCast) or (
        isinstance(function, type) and issubclass(function, np.generic)
    )
    if (
        cast
        or id(function) in functions.PURE
        or isinstance(function, functions.TypedUfunc)
        or function in (range, tuple)
    ):
        return function(*given)
    raise NotVectorisedError(f"of a call of {ast.unparse(site.node.func)}")


def _twin(site: Site, function: Any, given: list, named: dict[str, Any]) -> Any:
    """Return what a twin gives: a function of Python alone that stands for an intrinsic."""
    key = function.func if type(function) is partial else function  # registered without the launch's `cuda`
    made = TWINS.get(id(key))
    if made is not None:
        return made(site.frame, *given, **named)
    if id(function) not in functions.PURE or named:
        raise NotVectorisedError(f"of a call of {ast.unparse(site.node.func)}")
    if any(map(varies, given)):
        return functions.call(function, tuple(given), site.frame.width)
    return function(*given)


TWINS: dict[int, Callable] = {}  # a twin, by identity → the function of all lanes, which takes the frame first
_kept: list[Any] = []


def register_lanes(twin: Any, function: Callable) -> None:
    """Let the vectorised engine call `function(frame, *arguments)` for a twin (language/rewrite.py)."""
    _kept.append(twin)  # keeps its id from being given to another object
    TWINS[id(twin)] = function


def _method(site: Site, method: MethodType, given: list, named: dict[str, Any]) -> Any:
    """Return the result of a method of `cuda` or of what it holds."""
    owner, name = method.__self__, method.__name__
    if type(owner) is Atomics:
        return _atomic(site, name, given, named)
    table = METHODS.get(type(owner))
    if table is None or name not in table:
        raise NotVectorisedError(f"of {type(owner).__name__.lower()}.{name}")
    return table[name](site, *given, **named)


def _atomic(site: Site, name: str, given: list, named: dict[str, Any]) -> Any:
    if named or len(given) < 2:
        raise NotVectorisedError("of keyword arguments of an atomic operation")
    if name == "compare_and_swap":  # it has no index: it means the first element
        array, *values = given
        return atomics.update(site.frame, "cas", site.used, array, (0,) * len(array.shape), tuple(values))
    array, index, *values = given
    return atomics.update(site.frame, name, site.used, array, index, tuple(values))


def _grid(site: Site, ndim: Any) -> Any:
    frame = site.frame
    axes = ["xyz"[axis] for axis in range(operator.index(ndim))]
    found = tuple(_position(frame, axis) for axis in axes)
    return found[0] if ndim == 1 else found  # cuda.grid(1) is an int


def _position(frame: Frame, axis: str) -> Any:
    """Return blockIdx * blockDim + threadIdx along an axis."""
    extent = getattr(frame.lanes.machine.launch.block, axis)
    # Of Python ints, with their bounds: an index made of this needs no check of its numbers.
    parts = frame.lanes.special(f"blockIdx.{axis}"), extent, frame.lanes.special(f"threadIdx.{axis}")
    block, _, thread = parts
    product = binary(operator.mul, block, extent, frame.width) if type(block) is Vector else block * extent
    return binary(operator.add, product, thread, frame.width) if varies((product, thread)) else product + thread


def _int64s(frame: Frame, indices: Any) -> Any:
    if type(indices) is tuple:
        return tuple(_int64s(frame, one) for one in indices)
    return values.lanes_as_int64(indices)


register_lanes(int64s, _int64s)


def _gridsize(site: Site, ndim: Any) -> Any:
    return site.frame.lanes.machine.cuda.gridsize(ndim)


def _vote_of_block(name: str) -> Callable:
    def vote(site: Site, predicate: Any) -> Any:
        frame, machine = site.frame, site.frame.lanes.machine
        if kind_of(predicate) in BOOLS:
            raise NotVectorisedError(f"{name} gets a bool")  # which Numba does not compile: the scheduler raises
        machine.barrier(frame)  # gives up unless whole blocks are here, so the counts below are theirs
        blocks = machine.block_of[frame.lanes.ids]
        true = np.broadcast_to(truth(predicate, frame.width), frame.width)
        count = np.bincount(blocks, true, machine.blocks).astype(np.int64)
        here = np.bincount(blocks, minlength=machine.blocks)
        found = {"syncthreads_count": count, "syncthreads_and": count == here, "syncthreads_or": count > 0}[name]
        return Vector(int, found.astype(np.int64)[blocks], 0, machine.launch.threads)

    return vote


def _shared_array(site: Site, shape: Any, dtype: Any, alignment: Any = None) -> Any:
    machine, kind = site.frame.lanes.machine, dtype_of(dtype)
    extents = shape_of(shape)
    # A call makes one array. Device functions that a closure made from one source share its nodes, not their globals.
    key = id(site.node), id(site.frame.call._globals)
    if extents == (0,):  # shape 0 is all of the dynamic shared memory
        return _seen(site, key, machine.dynamic(kind, machine.cuda.shared._dynamic_bytes, DYNAMIC_POISON), True)
    made = machine.shared(key, extents, kind, alignment or kind.alignment)
    # Such a launch fails: the scheduler raises, with the array's shape and bytes.
    static = machine.static_bytes()
    if static > MAX_STATIC_SHARED or static + machine.cuda.shared._dynamic_bytes > MAX_SHARED:
        raise NotVectorisedError("a block's shared arrays take more bytes than a block has")
    return _seen(site, key, made, False)


def _seen(site: Site, key: Any, made: Any, dynamic: bool) -> Any:
    """Return a shared array as the launch's observer, if there is one, knows it by the name that the call gives it."""
    watch = site.frame.lanes.machine.launch.watch
    if watch is None:
        return made
    if type(made) is Records:
        raise NotVectorisedError("of records in shared memory, of which an observer is told by the scheduler")
    view = made.viewed(made.shape, made.strides, made.offset)
    view.seen = watch.shared(site.frame, key, made, dynamic)
    site.frame.lanes.machine.launch.told += 1
    return view


def _local_array(site: Site, shape: Any, dtype: Any, alignment: Any = None) -> Any:
    extents, kind = shape_of(shape), dtype_of(dtype)
    check_local(extents, kind)
    return site.frame.lanes.machine.local(extents, kind)


def _constant_array(site: Site, array: Any) -> Any:
    # Records are several arrays, one for each field.
    if type(array) is Records:
        return array._replace(fields={name: _constant_array(site, field) for name, field in array.fields.items()})
    if type(array) is not Array:
        raise NotVectorisedError("of constant memory made of something other than an array")
    # A view of its own, because a kernel may store into the same array under its argument's name.
    constant = array.viewed(array.shape, array.strides, array.offset)
    constant.frozen = True
    return constant


def _select(site: Site, condition: Any, if_true: Any, if_false: Any) -> Any:
    # Both values have been computed, as selp has both operands: no lane needs a frame of its own.
    chosen = truth(condition, site.frame.width)
    if not isinstance(chosen, np.ndarray):
        return if_true if chosen else if_false
    yes, no = np.flatnonzero(chosen), np.flatnonzero(~chosen)
    if not len(yes) or not len(no):
        return if_true if len(yes) else if_false
    return merge(site.frame.width, [(yes, take(if_true, yes)), (no, take(if_false, no))], None)


def _fence(site: Site) -> None:
    # A fence may be a turn of a spin loop, so that its thread takes turns with the others: it counts as an atomic does.
    machine = site.frame.lanes.machine
    machine.atomics += 1
    machine.launch.tell("fence", site.frame)


def _lanes_below(site: Site) -> Any:
    lane = site.frame.lanes.special("laneid")
    return Vector(int, (np.int64(1) << lane.data) - 1) if type(lane) is Vector else (1 << lane) - 1


def _shuffle(name: str) -> Callable:
    return lambda site, mask, value, by: warps.shuffle(site.frame, name, mask, value, by)


def _vote(name: str) -> Callable:
    return lambda site, mask, predicate: warps.vote(site.frame, name, mask, predicate)


# A method without a row is left to the scheduler: activemask and nanosleep depend on its turns.
METHODS: dict[type, dict[str, Callable]] = {
    Cuda: {
        "grid": _grid,
        "gridsize": _gridsize,
        "syncthreads": lambda site: site.frame.lanes.machine.barrier(site.frame),
        **{name: _vote_of_block(name) for name in ("syncthreads_count", "syncthreads_and", "syncthreads_or")},
        **{name: _shuffle(name) for name in ("shfl_sync", "shfl_up_sync", "shfl_down_sync", "shfl_xor_sync")},
        **{name: _vote(name) for name in ("all_sync", "any_sync", "eq_sync", "ballot_sync")},
        "match_any_sync": lambda site, mask, value: warps.match_any(site.frame, mask, value),
        "match_all_sync": lambda site, mask, value: warps.match_all(site.frame, mask, value),
        "lanemask_lt": _lanes_below,
        **dict.fromkeys(("threadfence", "threadfence_block", "threadfence_system"), _fence),
        "syncwarp": lambda site, *mask: warps.syncwarp(site.frame, *mask),
        "selp": _select,
        # Cache hints change no value. ldcg, ldcs and ldlu are other names of this method, and stcs, stwb and stwt of
        # stcg. Not ldcv: a loop that waits for a store polls with it.
        "ldca": lambda site, array, index: accesses.load_item(site.frame, array, index),
        "stcg": lambda site, array, index, value: accesses.store_item(site.frame, array, index, value),
    },
    SharedMemory: {"array": _shared_array},
    LocalMemory: {"array": _local_array},
    ConstantMemory: {"array_like": _constant_array},
}
