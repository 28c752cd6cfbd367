"""Warp operations against a lane-by-lane model: masks, values, dtypes, divergence, partial warps, and refusals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda, int32

from normlab.sim import DeadlockError, MaskError, ShuffleError, simulate

FULL = 0xFFFFFFFF
masks = st.integers(1, FULL)
DTYPES = (np.int32, np.int64, np.float32, np.float64, np.uint32, np.uint64)


@cuda.jit
def shuffle_idx(mask, x, by, out):
    lane = cuda.laneid
    if mask >> lane & 1:
        out[lane] = cuda.shfl_sync(mask, x[lane], by[lane])


@cuda.jit
def shuffle_up(mask, x, by, out):
    lane = cuda.laneid
    if mask >> lane & 1:
        out[lane] = cuda.shfl_up_sync(mask, x[lane], by[lane])


@cuda.jit
def shuffle_down(mask, x, by, out):
    lane = cuda.laneid
    if mask >> lane & 1:
        out[lane] = cuda.shfl_down_sync(mask, x[lane], by[lane])


@cuda.jit
def shuffle_xor(mask, x, by, out):
    lane = cuda.laneid
    if mask >> lane & 1:
        out[lane] = cuda.shfl_xor_sync(mask, x[lane], by[lane])


SHUFFLES = {
    shuffle_idx: lambda lane, by: by,
    shuffle_up: lambda lane, by: lane - by if lane >= by else lane,
    shuffle_down: lambda lane, by: lane + by if lane + by <= 31 else lane,
    shuffle_xor: lambda lane, by: lane ^ by,
}


@settings(max_examples=60, deadline=None)
@given(
    kernel=st.sampled_from(list(SHUFFLES)),
    mask=masks,
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 1000),
    schedule=st.sampled_from(["forward", "reverse", 1, 2]),
    same=st.booleans(),
)
def test_a_shuffle_reads_the_lane_that_cuda_says_or_refuses(kernel, mask, dtype, seed, schedule, same):
    random = np.random.default_rng(seed)
    x = random.integers(0, 100, 32).astype(dtype)
    by = np.full(32, random.integers(0, 32)) if same else random.integers(0, 32, 32)
    if same and kernel is shuffle_idx:
        by[:] = random.choice([lane for lane in range(32) if mask >> lane & 1])
    lanes = [lane for lane in range(32) if mask >> lane & 1]
    sources = {lane: SHUFFLES[kernel](lane, int(by[lane])) for lane in lanes}
    out = np.zeros(32, dtype)
    if all(source in lanes for source in sources.values()):
        simulate(kernel, schedule)[1, 32](mask, x, by, out)
        expected = np.zeros(32, dtype)
        for lane, source in sources.items():
            expected[lane] = x[source]
        np.testing.assert_array_equal(out, expected)
    else:
        with pytest.raises(ShuffleError, match=f"which is not in the mask \\(mask {mask:#010x}"):
            simulate(kernel, schedule)[1, 32](mask, x, by, out)


@pytest.mark.parametrize("kernel", SHUFFLES)
@pytest.mark.parametrize("by", range(32))
def test_every_offset_of_a_full_warp_reads_the_right_lane(kernel, by):
    x, out = np.arange(32.0), np.zeros(32)
    simulate(kernel)[1, 32](FULL, x, np.full(32, by), out)
    assert list(out) == [SHUFFLES[kernel](lane, by) for lane in range(32)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_shuffle_keeps_the_type_of_its_value(dtype):
    types = []

    @cuda.jit
    def kernel(x):
        types.append(type(cuda.shfl_xor_sync(FULL, x[cuda.laneid], 1)))

    simulate(kernel)[1, 32](np.arange(32).astype(dtype))
    expected = np.int64 if dtype in (np.int32, np.uint32) else dtype
    assert all(issubclass(kind, expected) for kind in types)


def test_a_shuffle_moves_no_half_precision_as_in_numba():
    @cuda.jit
    def kernel(x):
        x[0] = cuda.shfl_xor_sync(FULL, x[0], 1)

    with pytest.raises(TypeError, match="shfl_xor_sync moves 32- and 64-bit ints and floats, not float16"):
        simulate(kernel)[1, 32](np.zeros(1, np.float16))


def test_the_hardware_reads_five_bits_of_a_lane_number():
    @cuda.jit
    def kernel(out):
        out[cuda.laneid] = cuda.shfl_sync(FULL, cuda.laneid, -1) + 100 * cuda.shfl_up_sync(FULL, cuda.laneid, 33)

    out = np.zeros(32, np.int64)
    simulate(kernel)[1, 32](out)
    assert out[0] == 31
    assert out[7] == 31 + 600


@cuda.jit
def votes(mask, predicate, out):
    lane = cuda.laneid
    if mask >> lane & 1:
        p = predicate[lane]
        out[0, lane] = cuda.all_sync(mask, p)
        out[1, lane] = cuda.any_sync(mask, p)
        out[2, lane] = cuda.eq_sync(mask, p)
        out[3, lane] = cuda.ballot_sync(mask, p)
        out[4, lane] = cuda.popc(cuda.ballot_sync(mask, p))


@settings(max_examples=40, deadline=None)
@given(mask=masks, predicates=st.integers(0, FULL) | st.sampled_from([0, FULL]), seed=st.integers(0, 9))
def test_votes_equal_the_model(mask, predicates, seed):
    predicate = np.array([3 * (predicates >> lane & 1) for lane in range(32)], np.int32)
    out = np.zeros((5, 32), np.int64)
    simulate(votes, schedule=seed)[1, 32](mask, predicate, out)
    inside = [bool(predicate[lane]) for lane in range(32) if mask >> lane & 1]
    ballot = mask & predicates
    expected = [all(inside), any(inside), len(set(inside)) == 1, np.uint32(ballot).astype(np.int32), ballot.bit_count()]
    for lane in range(32):
        assert list(out[:, lane]) == (expected if mask >> lane & 1 else [0] * 5)


@cuda.jit
def matches(mask, x, out):
    lane = cuda.laneid
    if mask >> lane & 1:
        out[0, lane] = cuda.match_any_sync(mask, x[lane])
        same, agreed = cuda.match_all_sync(mask, x[lane])
        out[1, lane] = same
        out[2, lane] = agreed


@settings(max_examples=40, deadline=None)
@given(mask=masks, kinds=st.integers(1, 3), dtype=st.sampled_from(DTYPES), seed=st.integers(0, 1000))
def test_matches_equal_the_model(mask, kinds, dtype, seed):
    x = np.random.default_rng(seed).integers(0, kinds, 32).astype(dtype)
    out = np.zeros((3, 32), np.int64)
    simulate(matches)[1, 32](mask, x, out)
    lanes = [lane for lane in range(32) if mask >> lane & 1]
    same = len({x[lane] for lane in lanes}) == 1
    for lane in lanes:
        equal = sum(1 << other for other in lanes if x[other] == x[lane])
        signed = equal - (equal >> 31 << 32)
        assert out[0, lane] == signed
        assert out[1, lane] == (signed if same else 0)
        assert out[2, lane] == same


def test_a_match_compares_bits():
    x = np.array([np.nan, np.nan, 0.0, -0.0] * 8, np.float32)
    out = np.zeros((3, 32), np.int64)
    simulate(matches)[1, 32](FULL, x, out)
    assert out[0, 0] == 0x33333333
    assert out[0, 2] == 0x44444444


def test_a_full_ballot_is_minus_one_as_an_int32_is():
    @cuda.jit
    def kernel(out):
        out[0] = cuda.ballot_sync(FULL, True)

    out = np.zeros(1, np.int64)
    simulate(kernel)[1, 32](out)
    assert out[0] == -1


def test_a_shuffle_reads_what_a_lane_gave_also_in_another_branch():
    @cuda.jit
    def kernel(out):
        lane = cuda.laneid
        if lane % 2:
            got = cuda.shfl_xor_sync(FULL, lane * 10, 1)
        else:
            got = cuda.shfl_xor_sync(FULL, lane * 100, 1)
        lane = -1  # a value given is a snapshot
        out[cuda.threadIdx.x] = got

    out = np.zeros(32, np.int64)
    simulate(kernel)[1, 32](out)
    assert list(out) == [lane * 10 for pair in range(0, 32, 2) for lane in (pair + 1, pair * 10)]


def test_two_halves_of_a_warp_shuffle_apart_in_loops_of_different_length():
    @cuda.jit
    def kernel(out):
        lane = cuda.laneid
        if lane < 16:
            value = lane
            for offset in (8, 4, 2, 1):
                value += cuda.shfl_xor_sync(0x0000FFFF, value, offset)
        else:
            value = 0
            for _ in range(7):
                value = cuda.shfl_sync(0xFFFF0000, lane, 20)
        out[lane] = value

    for schedule in ("forward", "reverse", 5):
        out = np.zeros(32, np.int64)
        simulate(kernel, schedule)[1, 32](out)
        assert list(out) == [120] * 16 + [20] * 16


def test_the_last_warp_of_a_block_may_be_partial():
    @cuda.jit
    def kernel(out):
        t = cuda.threadIdx.x
        out[t] = cuda.shfl_up_sync(FULL, t, 1) + 1000 * cuda.popc(cuda.ballot_sync(FULL, 1))

    out = np.zeros(40, np.int64)
    simulate(kernel)[1, 40](out)
    assert out[31] == 30 + 32000
    assert out[32] == 32 + 8000
    assert out[39] == 38 + 8000


def test_reading_a_lane_that_does_not_exist_or_has_returned_is_an_error():
    @cuda.jit
    def kernel(n):
        lane = cuda.laneid
        if lane < n:
            cuda.shfl_down_sync(FULL, lane, 1)

    with pytest.raises(ShuffleError, match=r"shfl_down_sync: lane 15 reads from lane 16, which has returned"):
        simulate(kernel)[1, 32](16)
    with pytest.raises(ShuffleError, match=r"lane 19 reads from lane 20, which does not exist in this block") as info:
        simulate(kernel)[1, 20](20)
    assert f"{__file__}:" in str(info.value)
    assert "cuda.shfl_down_sync(FULL, lane, 1)" in str(info.value)
    assert info.value.__notes__ == ["in kernel 'kernel', block (0, 0, 0), thread (19, 0, 0)"]


def test_a_mask_without_the_calling_lane_is_an_error():
    @cuda.jit
    def kernel():
        cuda.syncwarp(0x3)

    with pytest.raises(
        MaskError, match=r"lane 2 calls syncwarp with mask 0x00000003, which leaves the lane itself out"
    ):
        simulate(kernel)[1, 32]()


def test_lanes_wait_for_each_other_only_at_the_same_operation_and_mask():
    @cuda.jit
    def kernel():
        if cuda.laneid < 16:
            cuda.any_sync(FULL, 1)
        else:
            cuda.all_sync(FULL, 1)

    with pytest.raises(DeadlockError) as info:
        simulate(kernel)[1, 32]()
    message = str(info.value)
    assert "16 threads at any_sync" in message
    assert "16 threads at all_sync" in message
    assert "waits for lanes 16, 17, 18" in message


def test_syncwarp_orders_stores_before_loads_of_the_same_warp():
    @cuda.jit
    def kernel(out):
        shared = cuda.shared.array(32, int32)
        lane = cuda.laneid
        shared[lane] = lane
        cuda.syncwarp()
        out[lane] = shared[31 - lane]

    for schedule in ("forward", "reverse", 0):
        out = np.zeros(32, np.int32)
        simulate(kernel, schedule)[1, 32](out)
        assert list(out) == list(range(31, -1, -1))


def test_syncwarp_of_a_mask_leaves_the_other_lanes_alone():
    @cuda.jit
    def kernel(out):
        if cuda.laneid < 4:
            cuda.syncwarp(0xF)
            out[cuda.laneid] = 1

    out = np.zeros(32, np.int32)
    simulate(kernel)[1, 32](out)
    assert out.sum() == 4


def test_activemask_names_the_lanes_of_the_branch():
    @cuda.jit
    def kernel(out):
        lane = cuda.laneid
        if lane < 5:
            return
        if lane % 2:
            out[lane] = cuda.activemask()
        else:
            out[lane] = cuda.activemask()

    out = np.zeros(32, np.int64)
    simulate(kernel)[1, 32](out)
    assert out[7] == sum(1 << lane for lane in range(5, 32, 2))
    assert out[8] == sum(1 << lane for lane in range(6, 32, 2))
    assert out[0] == 0


def test_lanemask_lt_has_the_lanes_below():
    @cuda.jit
    def kernel(out):
        out[cuda.threadIdx.x] = cuda.lanemask_lt()

    out = np.zeros(40, np.int64)
    simulate(kernel)[1, 40](out)
    assert list(out) == [(1 << t % 32) - 1 for t in range(40)]
