"""Load, store and cast elements of any dtype with the same kernel code; with Python twins for the simulator."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba.cuda.extending import intrinsic

from normlab.engine.compile.compiler import BFLOAT16, TypingError, cgutils, types
from normlab.sim import register_lanes, register_twin
from normlab.sim.vectorised import twins


@intrinsic
def load(typing_context, array, index):
    """Return `array[index]` in accumulator precision (apex's T -> U): float64 stays, narrower dtypes become float32.

    `index` is an int or a tuple of ints, never negative. Numba's own indexing tests at every access whether the index
    counts from the end, and that test costs an inner loop more than its arithmetic does.
    """
    wide = types.float64 if array.dtype == types.float64 else types.float32

    def generate(context, builder, signature, args):
        value = context.unpack_value(builder, array.dtype, element_pointer(context, builder, signature, args))
        return widen(context, builder, value, array.dtype, wide)

    return wide(array, index), generate


@intrinsic
def store(typing_context, array, index, value):
    """Store `array[index] = value`, rounded to nearest even to the array's dtype (apex's U -> V).

    `index` as in `load`.
    """

    def generate(context, builder, signature, args):
        pointer = element_pointer(context, builder, signature, args)
        context.pack_value(builder, array.dtype, convert(context, builder, args[2], value, array.dtype), pointer)
        return context.get_dummy_value()

    return types.none(array, index, value), generate


@intrinsic
def cast(typing_context, value, array):
    """Return a value in `array`'s dtype. Write `cast(0, array)` where a bare `0.0` would be a float64."""

    def generate(context, builder, signature, args):
        return convert(context, builder, args[0], value, array.dtype)

    return array.dtype(value, array), generate


@intrinsic
def rounded(typing_context, value, array):
    """Return a value as `store` and then `load` would leave it: rounded to `array`'s dtype, in accumulator precision.

    The value stays in a register, so it need not be read back from memory after it was stored.
    """
    wide = types.float64 if array.dtype == types.float64 else types.float32

    def generate(context, builder, signature, args):
        narrow = convert(context, builder, args[0], value, array.dtype)
        return widen(context, builder, narrow, array.dtype, wide)

    return wide(value, array), generate


@intrinsic
def flat(typing_context, array):
    """Return a C-contiguous array as one axis: `array.reshape(-1)`, which Numba does not have on a GPU.

    A loop then advances one index by addition, and needs no multiplication of row by row length.
    """
    if array.layout != "C":
        raise TypingError(f"flat needs a C-contiguous array, but got {array}")
    line = array.copy(ndim=1)

    def generate(context, builder, signature, args):
        given = context.make_array(array)(context, builder, args[0])
        result = context.make_array(line)(context, builder)
        for name in ("meminfo", "parent", "nitems", "itemsize", "data"):
            setattr(result, name, getattr(given, name))
        result.shape = cgutils.pack_array(builder, [given.nitems])
        result.strides = cgutils.pack_array(builder, [given.itemsize])
        return result._getvalue()

    return line(array), generate


def element_pointer(context, builder, signature, args):
    """Return the address of `array[index]`, where array and index are an intrinsic's first two arguments.

    Raises TypingError unless the index has one int for each axis.
    """
    array, index = signature.args[:2]
    many = isinstance(index, types.BaseTuple)
    values, kinds = (cgutils.unpack_tuple(builder, args[1]), [*index]) if many else ([args[1]], [index])
    # Numba's pointer arithmetic takes any number of indices, and the cast would cut a float.
    if len(kinds) != array.ndim or not all(isinstance(kind, types.Integer) for kind in kinds):
        raise TypingError(f"an index of {array} has one int per axis, but got {', '.join(map(str, kinds))}")
    indices = [context.cast(builder, value, kind, types.intp) for value, kind in zip(values, kinds, strict=True)]
    data = context.make_array(array)(context, builder, args[0])
    return cgutils.get_item_pointer(context, builder, array, data, indices, wraparound=False)


def widen(context, builder, value, source, wide):
    """Convert a value of type `source` to the accumulator's type `wide`; a float keeps its value."""
    if source == BFLOAT16:  # the upper half of a float32
        bits = builder.shl(builder.zext(value, ir.IntType(32)), ir.IntType(32)(16))
        return builder.bitcast(bits, ir.FloatType())
    return context.cast(builder, value, source, wide)


def convert(context, builder, value, source, target):
    """Convert a value of type `source` to type `target`, rounded to nearest even."""
    if target != BFLOAT16:
        return context.cast(builder, value, source, target)
    # A float64 is rounded twice, first to float32, as ml_dtypes does in the simulator.
    single = context.cast(builder, value, source, types.float32)
    function = ir.FunctionType(ir.IntType(16), [ir.FloatType()])
    return builder.call(ir.InlineAsm(function, "cvt.rn.bf16.f32 $0, $1;", "=h,f"), [single])


def _load(array: Any, index: Any) -> Any:
    value = array[index]
    kind = type(value)  # compared by identity: isinstance and a needless cast take twice as long as the load itself
    return value if kind is np.float32 or kind is np.float64 else np.float32(value)


def _store(array: Any, index: Any, value: Any) -> None:
    array[index] = value


def _cast(value: Any, array: np.ndarray) -> Any:
    kind = array.dtype.type
    return value if type(value) is kind else kind(value)  # no needless cast, as in `_load`


def _rounded(value: Any, array: np.ndarray) -> Any:
    narrow = array.dtype.type(value)
    return narrow if type(narrow) is np.float64 else np.float32(narrow)


def _flat(array: Any) -> Any:
    return array.reshape(-1)


register_twin(load, _load)
register_twin(store, _store)
register_twin(cast, _cast)
register_twin(rounded, _rounded)
register_twin(flat, _flat)
register_lanes(_load, twins.wide_item)
register_lanes(_store, twins.store_item)
register_lanes(_cast, twins.in_type_of)
register_lanes(_rounded, twins.rounded_to)
register_lanes(_flat, twins.flattened)
