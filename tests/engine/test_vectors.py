"""Vector accesses: values in all worlds, the PTX, what does not compile, what a trace counts, what is misaligned."""

import re
from functools import cache

import ml_dtypes
import needs
import numpy as np
import pytest
from numba import cuda, float32, float64, uint16, uint32
from numba.core import errors

from normlab.engine import (
    compile_ptx,
    copy_bits,
    launch,
    load_bits_into,
    load_vector,
    load_vector_into,
    store_bits_from,
    store_vector,
    store_vector_from,
    using,
)
from normlab.engine.compile.compiler import TypingError
from normlab.sim import SimulationError, simulate, trace

BFLOAT16 = ml_dtypes.bfloat16
FLOATS = [np.float16, BFLOAT16, np.float32, np.float64]
every_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: np.dtype(dtype).name)
REFUSED = TypingError, errors.TypingError  # raised while code is made, and while calls are typed


def wide(dtype):
    """What elements of a dtype are widened to, in NumPy's words and in Numba's."""
    return (np.float64, float64) if np.dtype(dtype) == np.float64 else (np.float32, float32)


def widths(dtype):
    """Elements of 2 bytes (a single half) to 32 bytes (two instructions)."""
    return [width for width in (1, 2, 4, 8, 16) if width * np.dtype(dtype).itemsize <= 32]


BY_WIDTH = [(dtype, width) for dtype in FLOATS for width in widths(dtype)]
every_width = pytest.mark.parametrize(("dtype", "width"), BY_WIDTH, ids=lambda one: getattr(one, "__name__", str(one)))


@cache
def copier(kind, width):
    """A kernel: thread i's vector i of row 1 of x, by way of the middle of a local array, into row 1 of y."""
    size = 3 * width

    @cuda.jit
    def copy(x, y):
        values = cuda.local.array(size, kind)
        i = cuda.grid(1) * width
        for k in range(size):
            values[k] = 0
        load_vector_into(values, width, x, (1, i), width)
        store_vector_from(y, (1, i), values, width, width)

    return copy


def odd_values(dtype, count):
    """Ordinary numbers, and what is lost when bits are moved wrongly: signed zeros, infinities, NaN, subnormals."""
    info = ml_dtypes.finfo(dtype)
    special = [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        info.max,
        -info.max,
        info.smallest_subnormal,
        -info.tiny / 2,
        info.tiny,
    ]
    values = np.random.default_rng(0).normal(size=count)
    values[: len(special)] = special[:count]
    return np.random.default_rng(1).permutation(values).astype(dtype)


def same(got, want):
    """Equal numbers with equal signs; NaN where NaN is wanted, whatever its bits."""
    got, want = np.asarray(got).astype(np.float64), np.asarray(want).astype(np.float64)
    np.testing.assert_array_equal(got, want)
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[numbers], np.signbit(want)[numbers])


@every_width
def test_vectors_come_and_go_unchanged(dtype, width):
    x = odd_values(dtype, 2 * 32 * width).reshape(2, -1)
    y = np.zeros_like(x)
    launch(copier(wide(dtype)[1], width), 1, 32, x, y)
    same(y[1], x[1])
    assert not y[0].any()


@cache
def tuples(width):
    """A kernel: the same by the intrinsics that take and give tuples."""

    @cuda.jit
    def copy(x, y):
        i = cuda.grid(1) * width
        store_vector(y, (1, i), load_vector(x, (1, i), width))

    return copy


@every_width
def test_tuples_come_and_go_unchanged(dtype, width):
    if width * np.dtype(dtype).itemsize not in (4, 8, 16):
        return  # refused: see below
    x = odd_values(dtype, 2 * 32 * width).reshape(2, -1)
    y = np.zeros_like(x)
    launch(tuples(width), 1, 32, x, y)
    same(y[1], x[1])


def hard_to_round(dtype):
    """Float32 values around the middles between two neighbouring numbers of a narrower dtype, the largest included."""
    numbers = np.random.default_rng(2).integers(0, 2**16, 2000).astype(np.uint16).view(dtype)
    numbers = np.concatenate([numbers, np.array([ml_dtypes.finfo(dtype).max, 0], dtype)])
    numbers = numbers[np.isfinite(numbers.astype(np.float32))]
    above = (numbers.view(np.uint16) + np.uint16(1)).view(dtype).astype(np.float64)
    middles = ((numbers.astype(np.float64) + np.where(np.isfinite(above), above, 65536)) / 2).astype(np.float32)
    infinity = np.float32(np.inf)
    values = np.concatenate([middles, np.nextafter(middles, infinity), np.nextafter(middles, -infinity)])
    return np.concatenate([values, np.float32([np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3.4e38, 65519.9, 65520])])


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16], ids=["float16", "bfloat16"])
def test_halves_are_rounded_to_nearest_even(dtype, width):
    values = hard_to_round(dtype)
    values = values[: len(values) // (32 * width) * 32 * width]
    x = np.stack([values, values])
    y = np.zeros(x.shape, dtype)
    launch(copier(float32, width), values.size // (32 * width), 32, x, y)
    with np.errstate(over="ignore"):
        same(y[1], values.astype(dtype))


@cache
def through_bits(bits, width):
    """A kernel: elements of x, kept as integers in shared memory, widened from there into y."""

    @cuda.jit
    def widen(x_bits, x, y):
        held = cuda.shared.array(0, bits, alignment=16)
        values = cuda.local.array(width, float32)
        i = cuda.threadIdx.x * width
        for k in range(width):
            held[i + k] = x_bits[i + k]
        load_bits_into(values, 0, held, i, width, x)
        for k in range(width):
            y[i + k] = values[k]

    return widen


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16, np.float32], ids=lambda dtype: np.dtype(dtype).name)
def test_bits_are_widened_as_the_elements_they_are(dtype, width):
    x = odd_values(dtype, 32 * width)
    bits, kind = (np.uint32, uint32) if x.itemsize == 4 else (np.uint16, uint16)
    y = np.zeros(x.size, np.float32)
    launch(through_bits(kind, width), 1, 32, x.view(bits), x, y, shared_bytes=x.nbytes)
    same(y, x)


@cache
def bits_round_trip(bits, width):
    """A kernel: float32 values, kept as the bits of y's dtype in shared memory, copied from there into y."""

    @cuda.jit
    def narrow(x, y):
        held = cuda.shared.array(0, bits, alignment=16)
        values = cuda.local.array(width, float32)
        i = cuda.threadIdx.x * width
        for k in range(width):
            values[k] = x[i + k]
        store_bits_from(held, i, values, 0, width, y)
        copy_bits(y, i, held, i, width)

    return narrow


OF_16_BYTES = [
    (dtype, width) for dtype, width in BY_WIDTH if dtype != np.float64 and width <= 16 // np.dtype(dtype).itemsize
]


@pytest.mark.parametrize(("dtype", "width"), OF_16_BYTES, ids=lambda one: getattr(one, "__name__", str(one)))
def test_values_are_rounded_to_the_elements_whose_bits_they_become(dtype, width):
    values = hard_to_round(dtype) if np.dtype(dtype).itemsize == 2 else odd_values(dtype, 32 * width)
    for first in range(0, len(values) // (32 * width) * 32 * width, 32 * width):
        x = values[first : first + 32 * width]
        y = np.zeros(x.size, dtype)
        kind = uint32 if y.itemsize == 4 else uint16
        launch(bits_round_trip(kind, width), 1, 32, x, y, shared_bytes=y.nbytes)
        with np.errstate(over="ignore"):
            same(y, x.astype(dtype))
            for engine in ("vectorised", "scheduler"):
                z = np.zeros_like(y)
                simulate(bits_round_trip(kind, width), engine=engine)[1, 32, 0, y.nbytes](x, z)
                same(z, y)


@needs.compiler
def test_bits_are_copied_by_one_load_and_one_store():
    ptx = compile_ptx(bits_round_trip(uint16, 8), ((np.float32, 1), (BFLOAT16, 1)))
    assert shapes(ptx, "st") == ["v4.32"]
    assert ptx.count("cvt.rn.bf16x2.f32") == 4
    for bits, y, message in (
        (uint32, np.float16, "store_bits_from needs bits of float16 in integers as wide, but got uint32"),
        (uint16, np.float32, "store_bits_from needs bits of float32 in integers as wide, but got uint16"),
    ):
        with pytest.raises(REFUSED, match=message):
            compile_ptx(bits_round_trip(bits, 1), ((np.float32, 1), (y, 1)))


@needs.compiler
def test_bits_of_another_size_or_of_more_than_16_bytes_are_not_copied():
    def copier_of(width):
        @cuda.jit
        def copy(x, y):
            copy_bits(y, 0, x, 0, width)

        return copy

    for width, x, y in ((1, np.uint16, np.float32), (8, np.uint32, np.float32)):
        message = f"copy_bits copies up to 16 bytes between elements of one size, but got {width} x {x.__name__} for"
        with pytest.raises(REFUSED, match=message):
            compile_ptx(copier_of(width), ((x, 1), (y, 1)))


def rows_from(dtype, columns, shift):
    """(2, columns) of zeros that begin so many elements behind a multiple of 16 bytes."""
    itemsize = np.dtype(dtype).itemsize
    memory = np.zeros(2 * columns * itemsize + 32, np.uint8)
    start = -memory.ctypes.data % 16 + shift * itemsize
    return memory[start : start + 2 * columns * itemsize].view(dtype).reshape(2, columns)


@every_width
def test_a_misaligned_vector_is_an_error_in_the_simulator(dtype, width):
    aligned, shifted = (rows_from(dtype, 32 * width, shift) for shift in (0, 1))
    kernel = copier(wide(dtype)[1], width)
    with using("simulator"):
        launch(kernel, 1, 32, aligned, aligned)
        if width == 1:
            launch(kernel, 1, 32, shifted, shifted)  # one element is where it belongs
            return
        for arrays in ((shifted, aligned), (aligned, shifted)):
            with pytest.raises(SimulationError, match="misaligned address"):
                launch(kernel, 1, 32, *arrays)


def test_a_vector_past_the_end_is_an_error_in_the_simulator():
    x = rows_from(np.float32, 32 * 4, 0)
    with using("simulator"), pytest.raises(IndexError):
        launch(copier(float32, 4), 2, 32, x, x)


def requests(counted):
    """Requests and sectors of loads, then of stores."""
    return [
        counted.metrics[f"l1tex__t_{what}_pipe_lsu_mem_global_op_{op}.sum"]
        for op in ("ld", "st")
        for what in ("requests", "sectors")
    ]


@every_width
def test_a_trace_counts_a_request_for_every_16_bytes_a_lane(dtype, width):
    x = rows_from(dtype, 32 * width, 0)
    size = width * np.dtype(dtype).itemsize
    instructions = -(-size // 16)
    counted = trace(copier(wide(dtype)[1], width))[1, 32](x, x)
    # 32 lanes move 32 sizes; where an instruction moves every other 16 bytes, it touches every sector all the same
    sectors = 32 if size > 16 else size
    assert requests(counted) == [instructions, instructions * sectors] * 2


def types_of(dtype):
    return (dtype, 2), (dtype, 2)


# What one instruction of so many bytes moves: lanes of a vector and the bits of each, or plain bits.
SHAPES = {2: "16", 4: "32", 8: "v2.32", 16: "v4.32"}
SHAPES_OF_64_BITS = {8: "64", 16: "v2.64"}


def shapes(ptx, operation):
    """The lanes and bits of every load or store of global memory."""
    found = re.findall(rf"{operation}\.global(?:\.nc)?(?:\.(v[24]))?\.[bfu](16|32|64)", ptx)
    return [".".join(filter(None, one)) for one in found]


@needs.compiler
@every_width
def test_the_ptx_has_one_instruction_for_every_16_bytes(dtype, width):
    ptx = compile_ptx(copier(wide(dtype)[1], width), types_of(dtype))
    itemsize = np.dtype(dtype).itemsize
    size = width * itemsize
    expected = [(SHAPES_OF_64_BITS if itemsize == 8 else SHAPES)[min(size, 16)]] * max(1, size // 16)
    assert shapes(ptx, "ld") == shapes(ptx, "st") == expected
    assert ".local" not in ptx


@needs.compiler
@pytest.mark.parametrize(("dtype", "kind"), [(np.float16, "f16x2"), (BFLOAT16, "bf16x2")], ids=["float16", "bfloat16"])
def test_halves_are_packed_two_at_a_time(dtype, kind):
    ptx = compile_ptx(copier(float32, 8), ((np.float32, 2), (dtype, 2)))
    assert ptx.count(f"cvt.rn.{kind}.f32") == 4
    assert ptx.count("cvt.rn") == 4


@needs.compiler
@pytest.mark.parametrize(("dtype", "width", "size"), [(np.float32, 3, 12), (np.float16, 3, 6), (np.float16, 12, 24)])
def test_other_sizes_are_refused(dtype, width, size):
    for kernel, name in ((copier(float32, width), "load_vector_into"), (tuples(width), "load_vector")):
        message = f"{name} moves 4, 8 or 16 bytes at a time, but {width} x {np.dtype(dtype).name} are {size}"
        with pytest.raises(REFUSED, match=message):
            compile_ptx(kernel, types_of(dtype))


@needs.compiler
@pytest.mark.parametrize("width", [0, -4])
def test_a_vector_without_elements_is_refused(width):
    @cuda.jit
    def load(x, y):
        values = cuda.local.array(4, float32)
        load_vector_into(values, 0, x, 0, width)
        y[0] = values[0]

    message = f"load_vector_into moves 4, 8 or 16 bytes at a time, but {width} x float32 are {4 * width}"
    with pytest.raises(REFUSED, match=message):
        compile_ptx(load, ((np.float32, 1), (np.float32, 1)))


@needs.compiler
def test_a_tuple_of_32_bytes_is_refused():
    with pytest.raises(REFUSED, match="load_vector moves 4, 8 or 16 bytes at a time, but 8 x float32 are 32"):
        compile_ptx(tuples(8), types_of(np.float32))


@needs.compiler
def test_bits_of_another_size_are_refused():
    with pytest.raises(REFUSED, match="load_bits_into needs bits of float32 in integers as wide, but got uint16"):
        compile_ptx(through_bits(uint16, 2), ((np.uint16, 1), (np.float32, 1), (np.float32, 1)))
