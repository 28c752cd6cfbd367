"""Shared, local, constant and dynamic memory; integer loads and stores; atomics."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda, float32, int32, types, uint8, uint32

from normlab.sim import SimulationError, read_vector, sanitize, simulate, trace, write_vector


def test_two_shared_arrays_on_one_line_are_two():
    @cuda.jit
    def kernel(out):
        a, b = cuda.shared.array(4, float32), cuda.shared.array(4, float32)
        a[cuda.threadIdx.x], b[cuda.threadIdx.x] = 1, 2
        out[cuda.threadIdx.x] = a[cuda.threadIdx.x] * 10 + b[cuda.threadIdx.x]

    out = np.zeros(4)
    simulate(kernel)[1, 4](out)
    assert list(out) == [12] * 4


def test_a_shared_array_made_in_a_loop_is_one_array_and_a_local_one_is_many():
    @cuda.jit
    def kernel(out):
        for i in range(3):
            shared = cuda.shared.array(1, int32)
            local = cuda.local.array(1, int32)
            if i == 0:
                shared[0] = 7
                local[0] = 7
        out[0] = shared[0]
        out[1] = local[0]

    out = np.zeros(2, np.int64)
    simulate(kernel)[1, 1](out)
    assert out[0] == 7
    assert out[1] == 0x5A5A5A5A


def test_shared_memory_of_a_device_function_is_shared_and_per_specialisation():
    def make(size):
        @cuda.jit(device=True)
        def total(value):
            shared = cuda.shared.array(size, float32)
            shared[cuda.threadIdx.x % size] = value
            cuda.syncthreads()
            return shared[0] + shared.size

        return total

    small, large = make(2), make(64)

    @cuda.jit
    def kernel(out):
        out[cuda.threadIdx.x] = small(1) + large(100)

    out = np.zeros(64)
    simulate(kernel)[1, 64](out)
    assert list(out) == [1 + 2 + 100 + 64] * 64


@pytest.mark.parametrize("dtype", [float32, np.float64, "float16", cuda.types.bfloat16])
@pytest.mark.parametrize("space", ["shared", "local"])
def test_fresh_float_memory_is_nan(dtype, space):
    @cuda.jit
    def in_shared(out):
        out[0] = np.isnan(float32(cuda.shared.array((2, 3), dtype)[1, 2]))

    @cuda.jit
    def in_local(out):
        out[0] = np.isnan(float32(cuda.local.array(shape=(2, 3), dtype=dtype)[1, 2]))

    out = np.zeros(1, np.bool_)
    simulate(in_shared if space == "shared" else in_local)[1, 1](out)
    assert out[0]


def test_fresh_integer_memory_is_a_recognisable_number_and_new_in_every_block():
    @cuda.jit
    def kernel(out):
        shared = cuda.shared.array(4, int32)
        byte = cuda.local.array(2, uint8)
        flag = cuda.shared.array(1, types.boolean)
        out[cuda.blockIdx.x] = shared[1] == 0x5A5A5A5A and byte[0] == 0x5A and flag[0]
        shared[1] = 3

    out = np.zeros(3, np.bool_)
    simulate(kernel)[3, 1](out)
    assert out.all()


def test_dynamic_shared_arrays_view_the_same_bytes():
    @cuda.jit
    def kernel(out):
        floats = cuda.shared.array(0, float32)
        integers = cuda.shared.array(0, int32)
        first, second = floats[:2], floats[2:]
        out[1] = np.isnan(floats[0])
        first[0] = 1.0
        second[0] = 2.0
        out[0] = integers[0]
        out[2] = integers[2]
        out[3] = len(floats)

    out = np.zeros(4, np.int64)
    simulate(kernel)[1, 1, 0, 18](out)
    assert list(out) == [0x3F800000, 1, 0x40000000, 4]


def test_a_shape_must_be_ints():
    @cuda.jit
    def kernel():
        cuda.shared.array(2.5, float32)

    with pytest.raises(TypeError, match="shape of an array in a kernel must be an int or a tuple of ints, not"):
        simulate(kernel)[1, 1]()


TABLE = np.array([3, 1, 2], np.int8)


def test_constant_memory_holds_the_values_and_is_read_only():
    @cuda.jit
    def kernel(out, write):
        table = cuda.const.array_like(TABLE)
        out[cuda.threadIdx.x] = table[cuda.threadIdx.x] * 100
        if write:
            table[0] = 1

    out = np.zeros(3, np.int64)
    simulate(kernel)[1, 3](out, False)
    assert list(out) == [300, 100, 200]
    with pytest.raises(ValueError, match="read-only"):
        simulate(kernel)[1, 3](out, True)
    assert list(TABLE) == [3, 1, 2]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]), st.integers(-(2**70), 2**70))
def test_a_store_wraps_to_the_width_of_the_array(dtype, value):
    @cuda.jit
    def kernel(x):
        x[0] = value

    x = np.zeros(1, dtype)
    simulate(kernel)[1, 1](x)
    assert x[0] == np.array(value % 2**64, np.uint64).astype(dtype)


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "u1", "u2", "u4"])
def test_narrow_integers_are_computed_in_64_bits(dtype):
    @cuda.jit
    def kernel(x, out):
        out[0] = x[0] * x[0] * x[0] - 1
        out[1] = x[1] - 1000

    x, out = np.array([100, 5], dtype), np.zeros(2, np.int64)
    simulate(kernel)[1, 1](x, out)
    assert list(out) == [999_999, -995]


def test_int64_wraps_silently():
    @cuda.jit
    def kernel(x):
        x[0] = x[0] + 1
        x[1] = x[1] * x[1]

    x = np.array([2**63 - 1, 2**62 + 3], np.int64)
    simulate(kernel)[1, 1](x)
    assert list(x) == [-(2**63), ((2**62 + 3) ** 2 + 2**63) % 2**64 - 2**63]


def test_fields_of_a_record_array_are_read_and_written():
    @cuda.jit
    def kernel(x):
        x[0].a = x[1]["a"] + 1
        x[0]["b"] = x[1].b * 2

    x = np.array([(0, 0), (4, 1.5)], [("a", "i8"), ("b", "f4")])
    simulate(kernel)[1, 1](x)
    assert x[0].tolist() == (5, 3.0)


# --- atomics ---------------------------------------------------------------------------------------------------------


ATOMICS = {
    "add": lambda old, v: old + v,
    "sub": lambda old, v: old - v,
    "and_": lambda old, v: old & v,
    "or_": lambda old, v: old | v,
    "xor": lambda old, v: old ^ v,
    "inc": lambda old, v: 0 if old >= v else old + 1,
    "dec": lambda old, v: v if old == 0 or old > v else old - 1,
    "exch": lambda old, v: v,
    "max": max,
    "min": min,
    "nanmax": max,
    "nanmin": min,
}
ANY = ("i4", "u4", "i8", "u8", "f4", "f8")
INTEGERS = ("i4", "u4", "i8", "u8")
UNSIGNED = ("u4", "u8")
ATOMIC_DTYPES = {name: ANY for name in ATOMICS} | dict.fromkeys(("and_", "or_", "xor", "exch"), INTEGERS)
ATOMIC_DTYPES |= dict.fromkeys(("inc", "dec"), UNSIGNED)


def wrapped(value, dtype):
    if dtype[0] == "f":
        return np.dtype(dtype).type(value)
    return np.array(int(value) % 2**64, np.uint64).astype(dtype)[()]


@pytest.mark.parametrize(("name", "dtype"), [(name, dtype) for name in ATOMICS for dtype in ATOMIC_DTYPES[name]])
def test_atomics_return_the_old_value_and_store_the_new_one(name, dtype):
    operation = getattr(cuda.atomic, name)

    @cuda.jit
    def one(x, v, old):
        old[0] = operation(x, 1, v)

    @cuda.jit
    def three(x, v, old):
        shared = cuda.shared.array((1, 2, 2), np.dtype(dtype))
        shared[0, 1, 1] = x[0, 1, 1]
        old[0] = operation(shared, (0, 1, 1), v)
        x[0, 1, 1] = shared[0, 1, 1]

    values = (0, 1, 5, 6, 7, 2**31 - 1, -1, -(2**31), 0.1, 2.0**24, 1e-3)
    values = [v for v in values if dtype[0] == "f" or isinstance(v, int)]
    for before in values:
        for v in values:
            before, v = wrapped(before, dtype), wrapped(v, dtype)
            python = (float, int)[dtype[0] != "f"]
            expected = wrapped(ATOMICS[name](python(before), python(v)), dtype)
            for kernel, shape, index in (one, 3, 1), (three, (1, 2, 2), (0, 1, 1)):
                x, old = np.zeros(shape, dtype), np.zeros(1, dtype)
                x[index] = before
                simulate(kernel)[1, 1](x, v, old)
                assert old[0] == before
                assert x[index] == expected
                assert np.count_nonzero(x) <= 1


def test_float32_atomic_add_rounds_to_float32_at_every_addition():
    @cuda.jit
    def kernel(x):
        cuda.atomic.add(x, 0, 0.1)

    x, expected = np.zeros(1, np.float32), np.float32(0)
    simulate(kernel)[1, 256](x)
    for _ in range(256):
        expected += np.float32(0.1)
    assert x[0] == expected


@pytest.mark.parametrize(
    ("name", "stored", "given_", "result"),
    [
        ("max", np.nan, 1, np.nan),
        ("max", 1, np.nan, 1),
        ("min", np.nan, 1, np.nan),
        ("min", 1, np.nan, 1),
        ("nanmax", np.nan, 1, 1),
        ("nanmax", 1, np.nan, 1),
        ("nanmin", np.nan, 1, 1),
        ("nanmin", 1, np.nan, 1),
    ],
)
def test_atomics_treat_nan_as_numba_does(name, stored, given_, result):
    operation = getattr(cuda.atomic, name)

    @cuda.jit
    def kernel(x, v):
        operation(x, 0, v)

    x = np.array([stored], np.float32)
    simulate(kernel)[1, 1](x, given_)
    np.testing.assert_array_equal(x, np.float32([result]))


def test_compare_and_swap_stores_only_where_the_expected_value_is():
    @cuda.jit
    def kernel(x, out):
        out[0] = cuda.atomic.cas(x, (1, 0), 5, -1)
        out[1] = cuda.atomic.cas(x, (1, 1), 5, -1)

    @cuda.jit
    def first(x, out):
        out[2] = cuda.atomic.compare_and_swap(x, 3, 8)
        out[3] = cuda.atomic.compare_and_swap(x[1:], 3, 8)

    x, out = np.array([[3, 4], [5, 6]], np.int32), np.zeros(4, np.int32)
    simulate(kernel)[1, 1](x, out)
    simulate(first)[1, 1](x[0], out)
    assert x.tolist() == [[8, 4], [-1, 6]]
    assert list(out) == [5, 6, 3, 4]


@pytest.mark.parametrize("schedule", ["forward", "reverse", 3])
def test_a_histogram_by_atomics_counts_every_element(schedule):
    @cuda.jit
    def histogram(x, bins):
        i = cuda.grid(1)
        cuda.atomic.add(bins, x[i], 1)

    x = np.random.default_rng(1).integers(0, 7, 192).astype(np.uint8)
    bins = np.zeros(7, np.int32)
    simulate(histogram, schedule)[3, 64](x, bins)
    np.testing.assert_array_equal(bins, np.bincount(x, minlength=7))


def test_cache_hints_load_and_store():
    @cuda.jit
    def kernel(x, out):
        cuda.stcs(out, 0, cuda.ldcs(x, 0) + cuda.ldca(x, 1))
        cuda.stwt(out, 1, cuda.ldcg(x, 0) * cuda.ldcv(x, 1))

    out = np.zeros(2, np.float32)
    simulate(kernel)[1, 1](np.array([3, 4], np.float32), out)
    assert list(out) == [7, 12]


@cuda.jit
def vectors_of_shared_memory(out):
    plain = cuda.shared.array(8, float32)
    aligned = cuda.shared.array(8, float32, 16)
    write_vector(aligned, 4, read_vector(out, 0, 4))
    if out.shape[0] == 8:
        read_vector(plain, 0, 4)


def test_a_shared_array_lies_as_it_was_asked_to_and_no_better():
    simulate(vectors_of_shared_memory)[1, 1](np.zeros(4, np.float32))
    with pytest.raises(SimulationError, match="needs a multiple of that, and a shared array an alignment=16"):
        simulate(vectors_of_shared_memory)[1, 1](np.zeros(8, np.float32))


@cuda.jit
def one_memory(x, out):
    singles, halves = cuda.shared.array(0, float32), cuda.shared.array(0, np.float16)
    pairs, words = cuda.shared.array(0, ml_dtypes.bfloat16), cuda.shared.array(0, uint32)
    thread = cuda.threadIdx.x
    last = singles.shape[0] - 32 + thread
    singles[last] = x[thread]
    out[0, thread] = pairs[2 * last + 1]
    out[1, thread] = words[last]
    out[2, thread] = halves[2 * last]
    cuda.syncthreads()
    out[3, thread] = singles[singles.shape[0] - 1 - thread]
    out[4, thread] = pairs.shape[0]


@pytest.mark.parametrize("run", [simulate, trace, sanitize])
def test_dynamic_arrays_of_all_dtypes_are_one_memory_of_up_to_227_kilobytes(run):
    x, out = np.arange(1, 33, dtype=np.float32), np.zeros((5, 32))
    report = run(one_memory)[1, 32, 0, 227 * 1024](x, out)
    want = x.view(np.uint16).reshape(32, 2).view(ml_dtypes.bfloat16)[:, 1], x.view(np.uint32), np.zeros(32), x[::-1]
    np.testing.assert_array_equal(out, [*(row.astype(float) for row in want), np.full(32, 227 * 512.0)])
    assert run is not sanitize or not report.findings


@pytest.mark.parametrize("run", [simulate, trace, sanitize])
@pytest.mark.parametrize("threads", [1, 32])
def test_a_local_array_has_at_most_512_kilobytes(run, threads):
    @cuda.jit
    def largest(out):
        local = cuda.local.array(131_072, float32)
        local[0] = 1
        out[cuda.threadIdx.x] = local[0]

    @cuda.jit
    def too_large(out):
        local = cuda.local.array((131_073, 1), float32)
        local[0, 0] = 2
        out[cuda.threadIdx.x] = local[0, 0]

    out = np.zeros(threads)
    run(largest)[1, threads](out)
    with pytest.raises(SimulationError, match=r"shape \(131073, 1\) takes 524292 bytes; a thread has at most 524288"):
        run(too_large)[1, threads](out)
    assert (out == 1).all()
