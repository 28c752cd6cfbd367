"""Move elements that begin in the middle of a vector, with instructions that move whole vectors.

An address that is no multiple of 16 bytes allows no access of 16 bytes. The elements from there on lie in two
neighbouring vectors that do begin at such multiples. Where in them is known only when the kernel runs, but arrays in
registers take no such index. So there is a branch for each number of elements, which names its registers. All threads
of a warp take the same one if their rows begin alike. Words selected in steps of half a vector, a quarter, …, and last
shifted by half a word (`shf.r`) took fifteen instructions per vector of eight elements: LayerNorm of 33,001 columns of
bfloat16 reached 0.80 of a copy, with branches 0.87 (H100).
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba.cuda.extending import intrinsic

from normlab.engine.compile.compiler import TypingError, types
from normlab.engine.device.asynchronous import GLOBAL, address
from normlab.engine.device.caching import evict_last
from normlab.engine.device.intrinsics import element_pointer, widen
from normlab.engine.device.vectors import WORD, WORD_BYTES, neighbour, vector_element
from normlab.sim import read_vector, register_lanes, register_twin
from normlab.sim.language.integers import INTEGER_CASTS
from normlab.sim.machine.observed import plain_array, pointer
from normlab.sim.vectorised import twins

LONG = ir.IntType(64)


@intrinsic
def shift_of(typing_context, array, index, width):
    """Return how many elements `array[index]` lies after the last multiple of `width` elements of the address space.

    `width` is a literal power of two, the index as in `load`; the array's address is a multiple of its elements' size.
    """
    if not isinstance(width, types.IntegerLiteral):
        return None
    count, size = width.literal_value, array.dtype.bitwidth // 8

    def generate(context, builder, signature, args):
        first = builder.ptrtoint(element_pointer(context, builder, types.none(array, index), args[:2]), LONG)
        elements = builder.lshr(first, LONG(size.bit_length() - 1))
        return builder.trunc(builder.and_(elements, LONG(count - 1)), ir.IntType(32))

    return types.int32(array, index, width), generate


@intrinsic
def load_words_if(typing_context, words, at, line, index, wanted, width):
    """Load `width` elements, from `line[index]` on, as words into `words[at]`, …; zeros where not `wanted`.

    `words` is a local array of int32; `line` has one axis and lies in global memory. One instruction of 8 or 16 bytes
    loads them, with the hint `evict_last`; its address is a multiple of its bytes. No branch comes with `wanted`, so
    several loads are in flight together.
    """
    if not isinstance(width, types.IntegerLiteral):
        return None
    full = width.literal_value
    _check("load_words_if", line, full)

    def generate(context, builder, signature, args):
        begin = element_pointer(context, builder, types.none(*signature.args[2:4]), args[2:4])
        flag = context.cast(builder, args[4], signature.args[4], types.int32)
        for position, word in enumerate(_load_if(builder, flag, begin, full * line.dtype.bitwidth // 8)):
            builder.store(word, neighbour(context, builder, words, at, args[:2], position))
        return context.get_dummy_value()

    return types.none(words, at, line, index, wanted, width), generate


@intrinsic
def cut_into(typing_context, target, start, words, at, shift, width, like):
    """Write `width` of the elements that words hold, from number `shift` on, to `target[start]`, …, widened.

    `words` is a local array that holds 2 `width` elements of `like`'s dtype from `words[at]` on. `shift` is at least 0
    and below `width`, and need not be known when the kernel is compiled.
    """
    if not isinstance(width, types.IntegerLiteral):
        return None
    generate = _from_words(target, start, words, at, like.dtype, width.literal_value, shift)
    return types.none(target, start, words, at, shift, width, like), generate


@intrinsic
def widen_into(typing_context, target, start, words, at, width, like):
    """Write the `width` elements of `like`'s dtype that words hold, from `words[at]` on, to `target[start]`, …."""
    if not isinstance(width, types.IntegerLiteral):
        return None
    generate = _from_words(target, start, words, at, like.dtype, width.literal_value, None)
    return types.none(target, start, words, at, width, like), generate


def _from_words(target, start, words, at, dtype, full, shift):
    """Return the code generator of `cut_into`, or with a shift of None that of `widen_into`."""

    def generate(context, builder, signature, args):
        count = full * dtype.bitwidth // 32 * (1 if shift is None else 2)
        given = [builder.load(neighbour(context, builder, words, at, args[2:4], place)) for place in range(count)]
        vector = _as_vector(builder, given, dtype)

        def write(first):
            for position in range(full):
                element = vector_element(builder, vector, first + position, dtype)
                value = widen(context, builder, element, dtype, target.dtype)
                builder.store(value, neighbour(context, builder, target, start, args[:2], position))

        if shift is None:
            write(0)
        else:
            _for_each_value(builder, context.cast(builder, args[4], shift, types.int32), full, write)
        return context.get_dummy_value()

    return generate


def _for_each_value(builder, number, count, write):
    """Branch to the code that `write(k)` generates, where k is the value of `number`, 0 <= number < count."""
    first = builder.append_basic_block("value_0")
    branches = builder.switch(number, first)
    blocks = [first] + [builder.append_basic_block(f"value_{k}") for k in range(1, count)]
    end = builder.append_basic_block("after_values")
    for k, block in enumerate(blocks):
        if k > 0:
            branches.add_case(WORD(k), block)
        builder.position_at_end(block)
        write(k)
        builder.branch(end)
    builder.position_at_end(end)


def _check(name, line, count):
    """Raise TypingError unless the elements are words or half words, and a vector of them has 8 or 16 bytes."""
    bits = line.dtype.bitwidth
    if bits not in (16, 32) or count * bits not in (64, 128) or line.ndim != 1 or line.layout != "C":
        raise TypingError(f"{name} moves 8 or 16 bytes of 2 or 4 each in an array of one axis, not {count} x {line}")


def _load_if(builder, flag, begin, size):
    """Return the words of the vector of `size` bytes at a pointer to global memory, or zeros where the flag is 0."""
    count = size // WORD_BYTES
    targets = [f"${word}" for word in range(count)]
    zeros = " ".join(f"mov.b32 {target}, 0;" for target in targets)
    text = (
        f"{{ .reg .pred wanted; setp.ne.b32 wanted, ${count}, 0; {zeros} "
        f"@wanted ld.global.L2::cache_hint.v{count}.b32 {{{', '.join(targets)}}}, [${count + 1}], ${count + 2}; }}"
    )
    function = ir.FunctionType(ir.LiteralStructType([WORD] * count), [WORD, LONG, LONG])
    load = ir.InlineAsm(function, text, ",".join(["=&r"] * count + ["r", "l", "l"]), side_effect=True)
    loaded = builder.call(load, [flag, address(builder, begin, GLOBAL), evict_last(builder)])
    return [builder.extract_value(loaded, word) for word in range(count)]


def _as_vector(builder, words, dtype):
    """Return words as the vector that `vector_element` takes: of words for 16-bit elements, else of float32."""
    vector = ir.VectorType(WORD, len(words))(ir.Undefined)
    for position, word in enumerate(words):
        vector = builder.insert_element(vector, word, WORD(position))
    return vector if dtype.bitwidth == 16 else builder.bitcast(vector, ir.VectorType(ir.FloatType(), len(words)))


def _shift_of(array: Any, index: Any, width: int) -> Any:
    plain = plain_array(array)
    parts = index if isinstance(index, tuple) else (index,)
    first = pointer(plain) + sum(int(part) * stride for part, stride in zip(parts, plain.strides, strict=True))
    return INTEGER_CASTS["int32"](first // plain.itemsize % width)


def _load_words_if(words: Any, at: int, line: Any, index: Any, wanted: Any, width: int) -> None:
    elements = np.zeros(width, line.dtype)
    if wanted:
        elements[:] = read_vector(line, index, width)
    for position, word in enumerate(elements.view(np.int32)):
        words[at + position] = word


def _cut_into(target: Any, start: int, words: Any, at: int, shift: int, width: int, like: Any) -> None:
    # With no shift the second vector is not read: `_widen_into`'s words hold one.
    count = (2 if shift else 1) * width * like.itemsize // WORD_BYTES
    elements = np.array([words[at + place] for place in range(count)], np.int32).view(like.dtype)
    for position in range(width):
        target[start + position] = elements[shift + position]


def _widen_into(target: Any, start: int, words: Any, at: int, width: int, like: Any) -> None:
    _cut_into(target, start, words, at, 0, width, like)


register_twin(shift_of, _shift_of)
register_twin(load_words_if, _load_words_if)
register_twin(cut_into, _cut_into)
register_twin(widen_into, _widen_into)
register_lanes(_shift_of, twins.place_in_vector)
register_lanes(_load_words_if, twins.words_if)
register_lanes(_cut_into, twins.cut)
register_lanes(_widen_into, twins.widen)
