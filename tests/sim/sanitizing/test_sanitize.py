"""`sanitize` itself: what it takes, what it returns, and the finer points of each kind of finding."""

import re

import numpy as np
import pytest
import torch
from numba import cuda, float32, int32
from sim.planted.collection import floats

from normlab.sim import Finding, Report, sanitize
from normlab.sim.sanitizing.shadow import ENOUGH

FULL = 0xFFFFFFFF


def found(kernel, grid, block, *arguments, **how):
    """(kind, array, lines counted from the kernel's `def`) of each finding."""
    report = sanitize(kernel, **how)[grid, block](*arguments)
    first = kernel.py_func.__code__.co_firstlineno + 1  # behind the decorator
    return [(f.kind, f.array, tuple(line - first for line in f.lines)) for f in report.findings]


# --- what it takes and returns ---------------------------------------------------------------------------------------


@cuda.jit
def doubled(x, out):
    i = cuda.grid(1)
    if i < x.shape[0]:
        out[i] = 2 * x[i]


@cuda.jit
def shifted(x):
    i = cuda.grid(1)
    if i + 1 < x.shape[0]:
        x[i] = x[i + 1]


def test_a_report_without_findings_is_ok_and_the_results_are_there():
    x, out = floats(5), np.zeros(5, np.float32)
    report = sanitize(doubled)[1, 32](x, out)
    assert isinstance(report, Report)
    assert report.ok
    assert report.findings == ()
    assert str(report) == "nothing found in kernel 'doubled'"
    np.testing.assert_array_equal(out, 2 * x)


def test_a_report_names_array_index_both_threads_and_both_lines_with_their_text():
    report = sanitize(shifted)[1, 64](floats(64))
    assert not report.ok
    (finding,) = report.findings
    assert isinstance(finding, Finding)
    assert (finding.kind, finding.array, finding.space, finding.index) == ("race", "x", "global", (32,))
    assert finding.count == 62
    assert not finding.benign
    first, second = finding.first, finding.second
    assert (first.operation, first.block, first.warp, first.lane) == ("read", (0, 0, 0), 0, 31)
    assert (second.operation, second.warp, second.lane, second.thread) == ("write", 1, 0, (32, 0, 0))
    assert first.text == second.text == "x[i] = x[i + 1]"
    assert first.file == __file__
    assert first.line == second.line == shifted.py_func.__code__.co_firstlineno + 4
    assert re.search(
        r"1 finding in kernel 'shifted'\n\n1\. race on global x\[32\], 62 times\n"
        r"  read by block \(0, 0, 0\), warp 0, lane 31, thread \(31, 0, 0\)\n"
        r"    .*test_sanitize.py:\d+: x\[i\] = x\[i \+ 1\]\n"
        r"  write by .*lane 0, .*\n    .*\n  line \d+ writes an element",
        str(report),
    )


@pytest.mark.parametrize("what", [3, "kernel", None])
def test_what_is_no_kernel_is_refused(what):
    with pytest.raises(TypeError, match=r"sanitize takes a numba.cuda.jit kernel or a Python function"):
        sanitize(what)


def test_a_missing_launch_configuration_is_named():
    with pytest.raises(
        ValueError, match=re.escape("needs a launch configuration: sanitize(doubled)[grid, block](...)")
    ):
        sanitize(doubled)(floats(3), floats(3))


@pytest.mark.parametrize(
    ("uninitialized", "error", "text"),
    [
        (floats(3), TypeError, r"is a sequence of arrays, as in uninitialized=\[out\], not one ndarray"),
        (3, TypeError, "is a sequence of arrays"),
        ([3], TypeError, "holds the int 3; it takes arrays"),
        (["out"], TypeError, "holds the str 'out'"),
    ],
)
def test_an_uninitialized_that_is_no_sequence_of_arrays_is_refused(uninitialized, error, text):
    with pytest.raises(error, match=text):
        sanitize(doubled, uninitialized)


def test_an_uninitialized_array_that_is_no_argument_is_refused():
    with pytest.raises(
        ValueError, match=r"shape \(7,\) and dtype float32 that is not among the arguments of .*'doubled'"
    ):
        sanitize(doubled, [floats(7)])[1, 32](floats(3), floats(3))


@cuda.jit
def divides(x, n):
    x[0] = x[cuda.threadIdx.x]
    if n == 0:
        raise ValueError("n must not be 0")


def test_an_exception_of_the_kernel_s_own_surfaces_with_the_findings_so_far():
    with pytest.raises(ValueError, match="n must not be 0") as caught:
        sanitize(divides)[1, 2](floats(1), 0)
    assert caught.value.__notes__ == ["in kernel 'divides', block (0, 0, 0), thread (0, 0, 0)"]
    assert caught.value.sanitizer_report.ok

    with pytest.raises(ValueError, match="n must not be 0") as caught:
        sanitize(divides)[1, 2](floats(0), 0)
    assert any("out-of-bounds on global x[0], 2 times" in note for note in caught.value.__notes__)
    assert [finding.kind for finding in caught.value.sanitizer_report.findings] == ["out-of-bounds"]


# --- races -----------------------------------------------------------------------------------------------------------


@cuda.jit
def two_names(x, y):
    i = cuda.threadIdx.x
    x[i] = i
    y[i] = 0


def test_arguments_that_share_memory_race():
    memory = floats(40)
    assert found(two_names, 1, 8, memory[:8], memory[8:16]) == []
    ((kind, _, lines),) = found(two_names, 1, 8, memory[:8], memory[1:9])
    assert (kind, lines) == ("race", (2, 3))


@cuda.jit
def halves(words, bytes_):
    if cuda.threadIdx.x == 0:
        words[0] = 1
    else:
        bytes_[cuda.threadIdx.x] = 1


def test_arrays_of_different_dtypes_race_where_they_overlap():
    memory = np.zeros(8, np.uint8)
    ((kind, _, lines),) = found(halves, 1, 6, memory.view(np.uint32), memory)
    assert (kind, lines) == ("race", (2, 4))
    for schedule in ("forward", "reverse"):
        assert sanitize(halves, schedule=schedule)[1, 6](memory.view(np.uint32), memory).findings[0].count == 3


@cuda.jit
def fenced_for_the_block_only(message, flag, out):
    if cuda.blockIdx.x == 0:
        message[0] = 7
        cuda.threadfence_block()
        cuda.atomic.exch(flag, 0, 1)
    else:
        while cuda.atomic.add(flag, 0, 0) == 0:
            pass
        out[0] = message[0]


def test_a_fence_for_the_block_does_not_reach_another_block():
    arguments = floats(1), np.zeros(1, np.int32), floats(1)
    ((kind, array, lines),) = found(fenced_for_the_block_only, 2, 1, *arguments)
    assert (kind, array, lines) == ("race", "message", (2, 8))
    (finding,) = sanitize(fenced_for_the_block_only)[2, 1](floats(1), np.zeros(1, np.int32), floats(1)).findings
    first = fenced_for_the_block_only.py_func.__code__.co_firstlineno
    assert (
        f"put cuda.threadfence() before the atomic at line {first + 5}" in finding.advice or "fence" in finding.advice
    )


@cuda.jit
def polled_by_a_plain_load(message, flag, out):
    if cuda.blockIdx.x == 0:
        message[0] = 7
        cuda.threadfence()
        cuda.atomic.exch(flag, 0, 1)
    else:
        while flag[0] == 0:
            pass
        out[0] = message[0]


@cuda.jit
def raised_by_a_plain_store(message, flag, out):
    if cuda.blockIdx.x == 0:
        message[0] = 7
        cuda.threadfence()
        flag[0] = 1
    else:
        while cuda.atomic.add(flag, 0, 0) == 0:
            pass
        out[0] = message[0]


@pytest.mark.parametrize(
    ("kernel", "lines", "advice"),
    [
        (polled_by_a_plain_load, (4, 6), r"make the read one too, or put a grid sync between them"),
        (raised_by_a_plain_store, (4, 6), r"make the write one too, or put a grid sync between them"),
    ],
)
def test_a_flag_that_is_no_atomic_on_one_side_is_the_race_and_what_it_guards_is_not(kernel, lines, advice):
    arguments = floats(1), np.zeros(1, np.int32), floats(1)
    assert found(kernel, 2, 1, *arguments) == [("race", "flag", lines)]
    (finding,) = sanitize(kernel)[2, 1](floats(1), np.zeros(1, np.int32), floats(1)).findings
    assert finding.advice.endswith(advice)


@cuda.jit
def counted_and_cleared(count):
    cuda.atomic.add(count, 0, 1)
    count[0] = 0


def test_an_atomic_on_the_element_itself_is_no_signal_that_lacks_a_fence():
    report = sanitize(counted_and_cleared)[2, 1](np.zeros(1, np.int32))
    advice = {finding.lines: finding.advice for finding in report.findings}
    assert sorted(len(lines) for lines in advice) == [1, 2]
    assert all("fence" not in text for text in advice.values())


@cuda.jit
def exchanged_by_activemask(x, out):
    buffer = cuda.shared.array(32, float32)
    lane = cuda.threadIdx.x
    buffer[lane] = x[lane]
    cuda.activemask()
    out[lane] = buffer[31 - lane]


@cuda.jit
def exchanged_by_a_vote(x, out):
    buffer = cuda.shared.array(32, float32)
    lane = cuda.threadIdx.x
    buffer[lane] = x[lane]
    cuda.all_sync(FULL, True)
    out[lane] = buffer[31 - lane]


@cuda.jit
def exchanged_across_the_mask(x, out):
    buffer = cuda.shared.array(32, float32)
    lane = cuda.threadIdx.x
    buffer[lane] = x[lane]
    cuda.syncwarp(0xFFFF if lane < 16 else 0xFFFF0000)
    out[lane] = buffer[31 - lane]


def test_lanes_are_ordered_by_sync_operations_that_both_take_part_in_and_not_by_activemask():
    assert found(exchanged_by_a_vote, 1, 32, floats(32), floats(32)) == []
    assert found(exchanged_by_activemask, 1, 32, floats(32), floats(32)) == [("race", "buffer", (3, 5))]
    assert found(exchanged_across_the_mask, 1, 32, floats(32), floats(32)) == [("race", "buffer", (3, 5))]


@cuda.jit
def tile_used_again(x, out):
    tile = cuda.shared.array(64, float32)
    thread = cuda.threadIdx.x
    for _ in range(3):
        tile[thread] = x[thread]
        cuda.syncthreads()
        out[thread] += tile[cuda.blockDim.x - 1 - thread]


@cuda.jit
def overwritten(x, values):
    x[0] = values[cuda.threadIdx.x]


def test_a_race_is_benign_only_if_all_write_the_same_value():
    (same,) = sanitize(overwritten)[1, 4](floats(1), np.full(4, 3, np.float32)).findings
    (different,) = sanitize(overwritten)[1, 4](floats(1), np.array([3, 3, 4, 4], np.float32)).findings
    assert same.benign
    assert same.count == 6
    assert "race of equal values" in str(same)
    assert not different.benign


@pytest.mark.parametrize(
    ("kernel", "grid", "block", "arrays", "advice"),
    [
        (exchanged_by_activemask, 1, 32, 2, r"the write at line \d+ and the read at line \d+: put cuda.syncwarp\(\)"),
        (shifted, 1, 32, 1, r"read into a variable, then cuda.syncwarp\(\), then write"),
        (shifted, 1, 64, 1, r"read into a variable, then cuda.syncthreads\(\), then write"),
        (shifted, 2, 32, 1, "which are in two blocks: put them into two kernels, or a grid sync"),
        (overwritten, 1, 2, 2, "let one of them write, or use cuda.atomic"),
        (
            tile_used_again,
            1,
            64,
            2,
            r"in the loop's next turn: put cuda.syncthreads\(\) at the end of the body of the loop at line \d+",
        ),
        (
            tile_used_again,
            1,
            32,
            2,
            r"in the loop's next turn: put cuda.syncwarp\(\) at the end of the body of the loop at line \d+",
        ),
    ],
)
def test_the_advice_fits_the_threads_that_are_farthest_apart(kernel, grid, block, arrays, advice):
    for schedule in ("forward", "reverse"):
        report = sanitize(kernel, schedule=schedule)[grid, block](*(floats(64) for _ in range(arrays)))
        assert re.search(advice, report.findings[0].advice)


def test_arrays_made_on_one_line_have_names_of_their_own():
    # fmt: off
    @cuda.jit
    def kernel(out):
        a = cuda.shared.array(4, float32); b = cuda.shared.array(4, float32)  # noqa: E702
        c, d = cuda.local.array(4, float32), cuda.local.array(4, float32)
        t = cuda.threadIdx.x
        a[t] = b[t] = c[0] = t
        out[t] = a[t] + b[3 - t] + c[0] + d[0]
    # fmt: on

    assert {(kind, array) for kind, array, _ in found(kernel, 1, 4, np.zeros(4))} == {
        ("race", "b"),
        ("uninitialized-read", "d"),
    }


def test_the_race_of_thousands_of_threads_is_one_finding():
    (finding,) = sanitize(overwritten)[20, 64](floats(1), np.arange(64, dtype=np.float32)).findings
    assert finding.count >= ENOUGH  # and about there it is settled


# --- memory without contents -----------------------------------------------------------------------------------------


def test_only_the_uninitialized_part_of_an_array_counts():
    @cuda.jit
    def copied(x, out):
        out[cuda.threadIdx.x] = x[cuda.threadIdx.x]

    x = floats(8)
    assert found(copied, 1, 8, x, floats(8)) == []
    assert found(copied, 1, 3, x, floats(8), uninitialized=[x[3:]]) == []
    assert found(copied, 1, 4, x, floats(8), uninitialized=[x[3:]]) == [("uninitialized-read", "x", (1,))]
    assert found(copied, 1, 8, x, floats(8), uninitialized=[x[::-2]]) == [("uninitialized-read", "x", (1,))]
    (finding,) = sanitize(copied, [x[5:6]])[1, 8](x, floats(8)).findings
    assert (finding.index, finding.count, finding.second) == ((5,), 1, None)


def test_torch_tensors_may_be_uninitialized():
    @cuda.jit
    def incremented(x):
        x[cuda.threadIdx.x] += 1

    tensor = torch.zeros(4)
    assert found(incremented, 1, 4, tensor) == []
    assert found(incremented, 1, 4, tensor, uninitialized=[tensor]) == [("uninitialized-read", "x", (1,))]


@cuda.jit
def counted_in_garbage(out):
    bins = cuda.shared.array(4, int32)
    cuda.atomic.add(bins, cuda.threadIdx.x % 4, 1)
    cuda.syncthreads()
    out[cuda.threadIdx.x] = bins[cuda.threadIdx.x % 4]


@cuda.jit
def cleared_by_exchange(out):
    bins = cuda.shared.array(4, int32)
    cuda.atomic.exch(bins, cuda.threadIdx.x % 4, 0)
    cuda.syncthreads()
    out[cuda.threadIdx.x] = bins[cuda.threadIdx.x % 4]


def test_an_atomic_reads_what_it_updates_unless_it_is_an_exchange():
    assert found(counted_in_garbage, 1, 8, np.zeros(8)) == [("uninitialized-read", "bins", (2,))]
    assert found(cleared_by_exchange, 1, 8, np.zeros(8)) == []


@cuda.jit
def counted_in_garbage_at_two_places(out):
    bins = cuda.shared.array(1, int32)
    if cuda.threadIdx.x % 2:
        cuda.atomic.add(bins, 0, 1)
    else:
        cuda.atomic.max(bins, 0, 1)
    cuda.syncthreads()
    out[cuda.threadIdx.x] = bins[0]


@pytest.mark.parametrize("schedule", ["forward", "reverse", 4])
def test_every_line_that_updates_garbage_is_named_and_no_line_that_reads_the_outcome(schedule):
    want = [("uninitialized-read", "bins", (3,)), ("uninitialized-read", "bins", (5,))]
    assert found(counted_in_garbage_at_two_places, 1, 8, np.zeros(8), schedule=schedule) == want


@cuda.jit
def read_before_a_barrier_and_a_race(out):
    cell = cuda.shared.array(1, int32)
    if cuda.threadIdx.x == 0:
        out[0] = cell[0]
    cuda.syncthreads()
    cell[0] = cuda.threadIdx.x


@cuda.jit
def read_while_the_other_warp_writes(out):
    words = cuda.shared.array(1, int32)
    bytes_ = words.view(np.int8)  # the words' shadow has a unit for each byte
    if cuda.threadIdx.x == 0:
        out[0] = words[0]
        out[1] = bytes_[0]
    if cuda.threadIdx.x == 32:
        words[0] = 1


@pytest.mark.parametrize("schedule", ["forward", "reverse"])
def test_a_race_is_the_cause_only_of_reads_of_garbage_that_it_may_precede(schedule):
    report = found(read_before_a_barrier_and_a_race, 1, 64, np.zeros(1), schedule=schedule)
    assert report == [("uninitialized-read", "cell", (3,)), ("race", "cell", (5,))]
    report = found(read_while_the_other_warp_writes, 1, 64, np.zeros(2), schedule=schedule)
    assert report == [("race", "words", (4, 7)), ("race", "words", (5, 7))]


def test_a_record_stored_whole_is_read_and_written():
    @cuda.jit
    def shifted_records(x):
        if cuda.threadIdx.x < 2:
            x[cuda.threadIdx.x] = x[cuda.threadIdx.x + 1]

    x = np.array([(1, 2), (3, 4), (5, 6)], [("a", np.float32), ("b", np.int16)])
    assert found(shifted_records, 1, 1, x, uninitialized=[x[2:]]) == []
    assert x[0] == x[1]
    assert found(shifted_records, 1, 2, x) == [("race", "x", (2,))]
    assert found(shifted_records, 1, 1, x, uninitialized=[x[1:]]) == [("uninitialized-read", "x", (2,))]


def test_each_block_s_shared_memory_begins_without_contents():
    @cuda.jit
    def first_block_writes(out):
        buffer = cuda.shared.array(1, float32)
        if cuda.blockIdx.x == 0:
            buffer[0] = 1
        out[cuda.blockIdx.x] = buffer[0]

    (finding,) = sanitize(first_block_writes)[3, 1](np.zeros(3)).findings
    assert (finding.kind, finding.count, finding.space) == ("uninitialized-read", 2, "shared")


# --- indices ---------------------------------------------------------------------------------------------------------


@cuda.jit
def outside_in_every_way(x, out):
    out[0] = x[4, 0]
    out[1] = x[0, 5]
    out[2] = x[-5, 0]
    x[4, 0] = 1
    cuda.atomic.add(x, (0, 5), 1)
    row = x[4]
    row[0] = 2
    out[3] = row[1]
    before = cuda.threadIdx.x - 1
    out[4] = x[before, before]
    out[5] = x[2][5]
    out[6] = cuda.ldcv(x, (0, 5))


def test_a_launch_goes_on_after_an_index_that_is_out_of_bounds():
    x, out = floats(4, 5), np.zeros(7, np.float32)
    report = sanitize(outside_in_every_way)[1, 1](x, out)
    first = outside_in_every_way.py_func.__code__.co_firstlineno + 1
    assert [(f.kind, f.lines[0] - first, f.index) for f in report.findings] == [
        ("out-of-bounds", 1, (4, 0)),
        ("out-of-bounds", 2, (0, 5)),
        ("out-of-bounds", 3, (-5, 0)),
        ("out-of-bounds", 4, (4, 0)),
        ("out-of-bounds", 5, (0, 5)),
        ("out-of-bounds", 6, (4,)),
        ("negative-index", 10, (-1, -1)),
        ("out-of-bounds", 11, (5,)),
        ("out-of-bounds", 12, (0, 5)),
    ]
    assert "axis 1 of 'x', which has 5 elements" in report.findings[1].advice
    np.testing.assert_array_equal(x, floats(4, 5))
    np.testing.assert_array_equal(np.isnan(out), [True, True, True, True, False, True, True])
    assert out[4] == x[-1, -1]


def test_a_loop_that_polls_out_of_bounds_ends_as_a_deadlock():
    @cuda.jit
    def kernel(flag, x):
        while cuda.ldcv(flag, 9) != 0:
            pass
        x[0] = 1

    report = sanitize(kernel)[1, 1](np.zeros(4, np.int32), floats(1))
    assert [finding.kind for finding in report.findings] == ["deadlock", "out-of-bounds"]


def test_a_negative_index_wraps_as_in_numba():
    @cuda.jit
    def last(x):
        i = cuda.threadIdx.x
        x[i - 1] = x[i - 2] + 1
        cuda.atomic.add(x, i - 3, 1)

    x = floats(4)
    assert found(last, 1, 1, x) == [("negative-index", "x", (2,)), ("negative-index", "x", (3,))]
    np.testing.assert_array_equal(x, [1, 3, 3, 4])


def test_records_slices_and_empty_arrays_have_bounds():
    @cuda.jit
    def touches(states, x, nothing):
        states[2].value = 1
        x[1:9] = 0
        states[0]["value"] = states[3]["value"]
        x[0] = nothing[0]

    states = np.zeros(2, [("value", np.float32)])
    assert found(touches, 1, 1, states, floats(4), floats(0)) == [
        ("out-of-bounds", "states", (1,)),
        ("out-of-bounds", "states", (3,)),
        ("out-of-bounds", "nothing", (4,)),
    ]


def test_an_index_that_is_no_integer_raises_as_it_does_in_simulate():
    @cuda.jit
    def halfway(x):
        x[0.5] = 1

    with pytest.raises(IndexError):
        sanitize(halfway)[1, 1](floats(2))


def test_arrays_in_tuples_are_watched():
    @cuda.jit
    def second(pair):
        pair[1][cuda.threadIdx.x] = 0

    assert found(second, 1, 4, (floats(4), floats(3))) == [("out-of-bounds", "pair[1]", (1,))]


# --- threads that wait -----------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def synchronised():
    cuda.syncthreads()


@cuda.jit
def barrier_by_two_calls(x):
    if cuda.threadIdx.x < 8:
        synchronised()
    else:
        synchronised()
    x[cuda.threadIdx.x] = 1


def test_a_barrier_in_a_device_function_is_told_apart_by_its_calls():
    assert found(barrier_by_two_calls, 1, 16, floats(16)) == [("barrier-divergence", None, (2, 4))]


@cuda.jit
def barrier_in_a_condition(x):
    first, turn = cuda.threadIdx.x // 32, 0  # the turn in which a thread comes to the barrier first
    while turn < 3 and (turn == 2 * (1 - first) or cuda.syncthreads_or(1)):
        turn += 1
    x[cuda.threadIdx.x] = turn


@pytest.mark.parametrize("schedule", ["forward", "reverse"])
def test_a_barrier_in_the_condition_of_a_while_is_one_barrier_in_all_turns(schedule):
    (finding,) = sanitize(barrier_in_a_condition, schedule=schedule)[1, 64](np.zeros(64)).findings
    line = barrier_in_a_condition.py_func.__code__.co_firstlineno + 3
    assert (finding.kind, finding.lines) == ("barrier-divergence", (line,))
    assert f"in different turns of the loop at line {line}" in finding.advice


@cuda.jit
def some_do_not_come(x):
    if cuda.threadIdx.x < 3:
        return
    cuda.syncthreads()
    x[cuda.threadIdx.x] = 1


def test_who_has_returned_before_a_barrier_is_named():
    (finding,) = sanitize(some_do_not_come)[1, 16](floats(16)).findings
    assert finding.second.operation == "returned"
    assert finding.second.lane < 3
    assert finding.second.line is None
    assert "3 threads of the block ended without coming to the syncthreads at line" in finding.advice


@cuda.jit
def neither_shuffles_nor_votes_agree(x, out):
    lane = cuda.threadIdx.x
    out[lane] = cuda.shfl_sync(0xFFFF, x[lane], 0)
    out[lane] += cuda.shfl_down_sync(FULL, x[lane], 1)
    if lane < 8:
        out[lane] += cuda.shfl_xor_sync(0xFF, x[lane], 8)


def test_a_lane_outside_its_mask_keeps_its_value_and_the_launch_goes_on():
    x, out = floats(32), np.zeros(32, np.float32)
    report = sanitize(neither_shuffles_nor_votes_agree)[1, 32](x, out)
    first = neither_shuffles_nor_votes_agree.py_func.__code__.co_firstlineno + 1
    assert [(f.kind, f.lines[0] - first, f.count) for f in report.findings] == [
        ("shuffle-mask", 2, 16),
        ("shuffle-mask", 5, 8),
    ]
    assert "leaves the lane itself out" in report.findings[0].advice
    assert "reads from lane 8, which is not in the mask" in report.findings[1].advice
    np.testing.assert_array_equal(out[16:31], x[16:31] + x[17:32])


@cuda.jit
def waits_for_two(flag, out):
    if cuda.threadIdx.x == 0:
        while cuda.atomic.add(flag, 0, 0) == 0:
            pass
    cuda.syncthreads()
    out[cuda.threadIdx.x] = 1


def test_a_deadlock_names_both_places_and_what_they_wait_for():
    (finding,) = sanitize(waits_for_two)[1, 8](np.zeros(1, np.int32), floats(8)).findings
    assert finding.kind == "deadlock"
    assert {finding.first.text, finding.second.text} == {
        "while cuda.atomic.add(flag, 0, 0) == 0:",
        "cuda.syncthreads()",
    }
    assert "waits for 1 more threads of its block to reach a barrier" in finding.advice
    assert "waits for a value that no thread writes" in finding.advice


@cuda.jit
def some_of_a_block_sync_the_grid(x, first, last):
    if first <= cuda.threadIdx.x < last:
        cuda.cg.this_grid().sync()
        x[cuda.grid(1)] = 1


def test_a_grid_sync_waits_for_thread_0_of_every_block_and_forgives_the_others():
    assert found(some_of_a_block_sync_the_grid, 2, 8, floats(16), 0, 8) == []
    assert found(some_of_a_block_sync_the_grid, 2, 8, floats(16), 0, 5) == [("barrier-divergence", None, (2,))]
    assert found(some_of_a_block_sync_the_grid, 2, 8, floats(16), 1, 8) == [("deadlock", None, (2,))]


@cuda.jit
def waits_for_a_plain_flag(flag, out, writer):
    i = cuda.grid(1)
    if i == writer:
        flag[0] = 1
    else:
        while flag[0] == 0:
            pass
    out[i] = 1


@cuda.jit
def waits_for_what_nobody_writes(flag):
    while flag[0] == 0:
        pass


@pytest.mark.parametrize("schedule", ["forward", "reverse"])
@pytest.mark.parametrize(("grid", "block"), [(2, 1), (1, 2), (1, 34)])
def test_a_spin_on_a_plain_load_lets_the_others_run(grid, block, schedule):
    for writer in (0, grid * block - 1):
        out = floats(grid * block) * 0
        report = sanitize(waits_for_a_plain_flag, schedule=schedule)[grid, block](np.zeros(1, np.int32), out, writer)
        assert [(finding.kind, finding.array) for finding in report.findings] == [("race", "flag")]
        assert out.all()


@pytest.mark.parametrize(("grid", "block"), [(1, 1), (2, 34)])
def test_a_spin_on_a_plain_load_for_nothing_is_a_deadlock(grid, block):
    (finding,) = sanitize(waits_for_what_nobody_writes)[grid, block](np.zeros(1, np.int32)).findings
    assert (finding.kind, finding.first.text) == ("deadlock", "while flag[0] == 0:")
    assert "waits for a value that no thread writes" in finding.advice
