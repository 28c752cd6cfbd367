"""Load and store several neighbouring elements in one instruction; with Python twins for the simulator."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba.cuda.extending import intrinsic

from normlab.engine.compile.compiler import BFLOAT16, TypingError, cgutils, types
from normlab.engine.device.asynchronous import GLOBAL, address
from normlab.engine.device.caching import evict_last
from normlab.engine.device.intrinsics import convert, element_pointer, widen
from normlab.sim import (
    copy_vector,
    read_vector,
    read_vector_into,
    register_lanes,
    register_twin,
    write_vector,
    write_vector_from,
)
from normlab.sim.language.integers import INTEGER_CASTS
from normlab.sim.vectorised import twins

WORD, WORD_BYTES = ir.IntType(32), 4


@intrinsic
def load_vector(typing_context, array, index, width):
    """Return `width` neighbouring elements, from `array[index]` on, as a tuple in accumulator precision.

    One instruction loads them. `width` is a literal int: 1, or so many that width times itemsize is 4, 8 or 16 bytes.
    The address must be a multiple of width times itemsize, because a misaligned address is a fault on a GPU. The
    elements are neighbours along the last axis, which is contiguous. Index as in `load`.
    """
    if not isinstance(width, types.IntegerLiteral):
        return None  # Numba then raises a TypingError that names the argument types
    count = width.literal_value
    _check_vector("load_vector", array, count)
    wide = types.float64 if array.dtype == types.float64 else types.float32
    result = types.UniTuple(wide, count)

    def generate(context, builder, signature, args):
        pointer, size = _vector_pointer(context, builder, array, index, args[:2], count, array.dtype)
        loaded = _load(builder, pointer, size)
        elements = [vector_element(builder, loaded, position, array.dtype) for position in range(count)]
        values = [widen(context, builder, element, array.dtype, wide) for element in elements]
        return context.make_tuple(builder, result, values)

    return result(array, index, width), generate


@intrinsic
def store_vector(typing_context, array, index, values):
    """Store the tuple `values` from `array[index]` on in one instruction, rounded as in `store`.

    Limits as in `load_vector`.
    """
    if not isinstance(values, types.BaseTuple):
        return None
    count = len(values)
    _check_vector("store_vector", array, count)

    def generate(context, builder, signature, args):
        pointer, size = _vector_pointer(context, builder, array, index, args[:2], count, array.dtype)
        wide = values[0]  # the type of the tuple's first element; the other elements are cast to it
        elements = [
            context.cast(builder, value, kind, wide)
            for value, kind in zip(cgutils.unpack_tuple(builder, args[2]), values, strict=True)
        ]
        stored = builder.store(_vector_of(context, builder, elements, wide, array.dtype), pointer)
        stored.align = size
        return context.get_dummy_value()

    return types.none(array, index, values), generate


@intrinsic
def load_vector_into(typing_context, target, start, array, index, width):
    """Load `width` neighbouring elements, from `array[index]` on, into `target[start], …`, widened as in `load_vector`.

    `target` is a local array, which stays in registers if the compiler knows `start`. Limits as in `load_vector`,
    except that a multiple of 16 bytes is taken, too, by several instructions.
    """
    if not isinstance(width, types.IntegerLiteral):
        return None
    _check_vector("load_vector_into", array, width.literal_value)
    generate = _load_into(target, start, array, index, width.literal_value, array.dtype)
    return types.none(target, start, array, index, width), generate


@intrinsic
def load_vector_evict_last(typing_context, target, start, array, index, width):
    """Load from global memory as `load_vector_into` does, and ask L2 to evict the lines read after all others.

    `engine.device.caching` says why. A single element of 16 bits is loaded without the hint.
    """
    if not isinstance(width, types.IntegerLiteral):
        return None
    _check_vector("load_vector_evict_last", array, width.literal_value)
    generate = _load_into(target, start, array, index, width.literal_value, array.dtype, load=_load_evict_last)
    return types.none(target, start, array, index, width), generate


@intrinsic
def load_bits_into(typing_context, target, start, array, index, width, like):
    """Load as `load_vector_into` does, from an array of unsigned integers that hold the bits of `like`'s dtype.

    Needed for bfloat16 in shared memory, because Numba has no shared arrays of bfloat16.
    """
    if not isinstance(width, types.IntegerLiteral):
        return None
    _check_vector("load_bits_into", array, width.literal_value)
    _check_bits("load_bits_into", array, like)
    generate = _load_into(target, start, array, index, width.literal_value, like.dtype)
    return types.none(target, start, array, index, width, like), generate


@intrinsic
def load_bits(typing_context, array, index):
    """Return the bits of `array[index]` as an unsigned integer. Index as in `load`."""
    bits = types.Integer.from_bitwidth(array.dtype.bitwidth, signed=False)

    def generate(context, builder, signature, args):
        pointer = element_pointer(context, builder, signature, args)
        return builder.load(builder.bitcast(pointer, context.get_data_type(bits).as_pointer()))

    return bits(array, index), generate


def _load(builder, pointer, size):
    """Load the vector of `size` bytes at a pointer."""
    loaded = builder.load(pointer)
    loaded.align = size
    return loaded


def _load_evict_last(builder, pointer, size):
    """Load the vector at a pointer to global memory, with the hint `evict_last` for L2."""
    words = size // WORD_BYTES
    if words == 0:
        return _load(builder, pointer, size)
    kind = {1: "b32", 2: "v2.b32", 4: "v4.b32"}[words]
    targets = ", ".join(f"${word}" for word in range(words))
    text = f"ld.global.L2::cache_hint.{kind} {{{targets}}}, [${words}], ${words + 1};"
    result = ir.LiteralStructType([WORD] * words) if words > 1 else WORD
    long = ir.IntType(64)
    load = ir.InlineAsm(
        ir.FunctionType(result, [long, long]), text, ",".join(["=r"] * words + ["l", "l"]), side_effect=True
    )
    loaded = builder.call(load, [address(builder, pointer, GLOBAL), evict_last(builder)])
    vector = ir.VectorType(WORD, words)(ir.Undefined)
    for word in range(words):
        part = builder.extract_value(loaded, word) if words > 1 else loaded
        vector = builder.insert_element(vector, part, WORD(word))
    return builder.bitcast(vector, pointer.type.pointee)


def _load_into(target, start, array, index, count, dtype, load=_load):
    """Return the code generator of the three `load_…` intrinsics above: it loads `count` elements of type `dtype`."""

    def generate(context, builder, signature, args):
        one = _elements_at_once(dtype, count)
        pointer, size = _vector_pointer(context, builder, array, index, args[2:4], one, dtype)
        for first in range(0, count, one):
            loaded = load(builder, builder.gep(pointer, [WORD(first // one)]), size)
            for position in range(one):
                element = vector_element(builder, loaded, position, dtype)
                value = widen(context, builder, element, dtype, target.dtype)
                builder.store(value, neighbour(context, builder, target, start, args[:2], first + position))
        return context.get_dummy_value()

    return generate


@intrinsic
def store_vector_from(typing_context, array, index, source, start, width):
    """Store `width` elements of the local array `source`, from `start` on, to `array[index], …`, rounded as in `store`.

    Limits as in `load_vector_into`: up to 16 bytes are one instruction.
    """
    if not isinstance(width, types.IntegerLiteral):
        return None
    _check_vector("store_vector_from", array, width.literal_value)
    return types.none(array, index, source, start, width), _store_from(array.dtype, source, width.literal_value)


@intrinsic
def store_bits_from(typing_context, array, index, source, start, width, like):
    """Store as `store_vector_from` does, to an array of unsigned integers that hold the bits of `like`'s dtype.

    Needed for bfloat16 in shared memory, as `load_bits_into`.
    """
    if not isinstance(width, types.IntegerLiteral):
        return None
    _check_vector("store_bits_from", array, width.literal_value)
    _check_bits("store_bits_from", array, like)
    return types.none(array, index, source, start, width, like), _store_from(like.dtype, source, width.literal_value)


def _store_from(dtype, source, count):
    """Return the code generator of the two `store_…` intrinsics above: it stores `count` elements of type `dtype`."""

    def generate(context, builder, signature, args):
        array, index = signature.args[:2]
        one = _elements_at_once(dtype, count)
        pointer, size = _vector_pointer(context, builder, array, index, args[:2], one, dtype)
        for first in range(0, count, one):
            places = [
                neighbour(context, builder, source, signature.args[3], args[2:4], first + position)
                for position in range(one)
            ]
            vector = _vector_of(context, builder, list(map(builder.load, places)), source.dtype, dtype)
            there = builder.gep(pointer, [WORD(first // one)])
            stored = builder.store(vector, builder.bitcast(there, vector.type.as_pointer()))
            stored.align = size
        return context.get_dummy_value()

    return generate


@intrinsic
def copy_bits(typing_context, target, target_index, source, source_index, width):
    """Copy `width` elements, of at most 16 bytes, from `source[source_index], …` to `target[target_index], …`.

    Bits are copied unchanged, by one load and one store: the dtypes may differ, but not their sizes. Limits as in
    `load_vector_into`.
    """
    if not isinstance(width, types.IntegerLiteral):
        return None
    count = width.literal_value
    _check_vector("copy_bits", source, count)
    _check_vector("copy_bits", target, count)
    if source.dtype.bitwidth != target.dtype.bitwidth or count * source.dtype.bitwidth > 128:
        raise TypingError(
            f"copy_bits copies up to 16 bytes between elements of one size, but got {count} x {source.dtype} "
            f"for {target.dtype}"
        )

    def generate(context, builder, signature, args):
        there, size = _vector_pointer(context, builder, target, target_index, args[:2], count, target.dtype)
        here, _ = _vector_pointer(context, builder, source, source_index, args[2:4], count, source.dtype)
        loaded = _load(builder, here, size)
        stored = builder.store(loaded, builder.bitcast(there, loaded.type.as_pointer()))
        stored.align = size
        return context.get_dummy_value()

    return types.none(target, target_index, source, source_index, width), generate


def _elements_at_once(dtype, count):
    """Return how many of `count` elements one instruction of at most 16 bytes moves."""
    return min(count, 128 // dtype.bitwidth)


def neighbour(context, builder, array, start, args, position):
    """Return the address of the element of a local array that lies `position` after the element `start`."""
    pointer = element_pointer(context, builder, types.none(array, start), args)
    return builder.gep(pointer, [ir.IntType(64)(position)])


def _vector_pointer(context, builder, array, index, args, count, dtype):
    """Return the address of `count` elements of type `dtype` as one vector, and their size in bytes.

    Elements of 16 bits are moved in pairs, as 32-bit words, because the compiler splits a vector of 16-bit elements
    into two instructions.
    """
    paired = dtype.bitwidth == 16 and count > 1
    part = ir.IntType(32) if paired else context.get_data_type(dtype)
    vector = ir.VectorType(part, count // 2 if paired else count)
    size = count * dtype.bitwidth // 8
    first = element_pointer(context, builder, types.none(array, index), args)
    return builder.bitcast(first, vector.as_pointer()), size


def vector_element(builder, vector, position, dtype):
    """Return one element of a vector whose 16-bit elements may be paired in words."""
    if vector.type.element != WORD or dtype.bitwidth != 16:
        return builder.extract_element(vector, WORD(position))
    word = builder.extract_element(vector, WORD(position // 2))
    return builder.trunc(builder.lshr(word, WORD(16 * (position % 2))), ir.IntType(16))


def _vector_of(context, builder, values, source, target):
    """Return values of type `source` as a vector of type `target`; 16-bit elements are rounded and packed in pairs."""
    if target.bitwidth == 16 and len(values) > 1:
        singles = [context.cast(builder, value, source, types.float32) for value in values]
        kind = "bf16x2" if target == BFLOAT16 else "f16x2"
        function = ir.FunctionType(WORD, [ir.FloatType()] * 2)
        pack = ir.InlineAsm(function, f"cvt.rn.{kind}.f32 $0, $2, $1;", "=r,f,f")
        parts = [builder.call(pack, pair) for pair in zip(singles[::2], singles[1::2], strict=True)]
    else:
        parts = [convert(context, builder, value, source, target) for value in values]
    vector = ir.VectorType(parts[0].type, len(parts))(ir.Undefined)
    for position, part in enumerate(parts):
        vector = builder.insert_element(vector, part, WORD(position))
    return vector


def _check_vector(name, array, count):
    """Raise TypingError unless intrinsic `name` can move `count` elements of `array`."""
    size = count * array.dtype.bitwidth // 8
    several = name in ("load_vector", "store_vector") or size % 16
    if count < 1 or (size not in (4, 8, 16) and count != 1 and several):
        raise TypingError(f"{name} moves 4, 8 or 16 bytes at a time, but {count} x {array.dtype} are {size}")
    if array.layout != "C":
        raise TypingError(f"{name} needs a C-contiguous array, whose neighbours lie side by side, but got {array}")


def _check_bits(name, array, like):
    """Raise TypingError unless the integers of `array` are as wide as elements of `like`."""
    if array.dtype.bitwidth != like.dtype.bitwidth:
        raise TypingError(f"{name} needs bits of {like.dtype} in integers as wide, but got {array.dtype}")


def _load_vector(array: Any, index: Any, width: int) -> tuple:
    if array.dtype.itemsize != 2:
        return read_vector(array, index, width)
    values = np.empty(width, np.float32)
    read_vector_into(values, 0, array, index, width)
    return tuple(values)


def _load_bits(array: Any, index: Any) -> Any:
    value = np.array(array[index], array.dtype)
    bits = value.view(f"u{value.itemsize}")
    return INTEGER_CASTS[bits.dtype.name](bits.item())


register_twin(load_bits, _load_bits)
register_twin(load_vector, _load_vector)
register_twin(load_vector_into, read_vector_into)
register_twin(load_vector_evict_last, read_vector_into)
register_twin(load_bits_into, read_vector_into)
register_twin(store_vector_from, write_vector_from)
register_twin(store_bits_from, write_vector_from)
register_twin(copy_bits, copy_vector)
register_twin(store_vector, write_vector)
register_lanes(_load_bits, twins.bits_of_item)
register_lanes(_load_vector, twins.wide_elements)
