"""`trace(kernel, play=…)`: the steps of a block, by hand and against the counts of the trace."""

import math

import ml_dtypes
import numpy as np
import pytest
from numba import cuda, float32

from normlab.engine.device.clusters import cluster_rank, cluster_sync, load_from_block
from normlab.kernels.forward.step_3_apex import build
from normlab.sim import trace
from normlab.sim.tracing.play import player
from normlab.sim.tracing.play.data import Meeting

ALL = tuple(range(32))


def played(kernel, block, *arguments, grid=1, play=0, **options):
    return trace(kernel, play=play, **options)[grid, block](*arguments).play().recording


def told(recording, warp=0):
    """(the statement, how many lanes) of each step of a warp."""
    return [(step.line.text, len(step.lanes)) for step in recording.steps if step.warp == warp]


def step_at(recording, text, warp=0, turn=0):
    """The number of a warp's step at the line with this text, the first time or after so many turns."""
    found = [n for n, step in enumerate(recording.steps) if step.warp == warp and text in step.line.text]
    return found[turn]


@cuda.jit
def part_ways(x, y):
    i = cuda.threadIdx.x
    if i < 8:
        y[i] = x[0]
    elif i < 24:
        y[i] = x[i]
        y[i] += 1
    y[i] += 2


def test_lanes_that_part_run_one_branch_after_the_other_and_join_after_it():
    recording = played(part_ways, 32, np.ones(32), np.zeros(32))
    assert told(recording) == [
        ("i = cuda.threadIdx.x", 32),
        ("if i < 8:", 32),
        ("y[i] = x[0]", 8),
        ("elif i < 24:", 24),
        ("y[i] = x[i]", 16),
        ("y[i] += 1", 16),
        ("y[i] += 2", 32),
    ]
    assert recording.steps[2].lanes == tuple(range(8))
    assert recording.steps[4].lanes == tuple(range(8, 24))
    assert recording.steps[-1].standing[0].returned == ALL
    assert recording.steps[-2].standing[0].returned == ()


@cuda.jit
def own_turns(y):
    i = cuda.threadIdx.x
    total = 0
    for k in range(i % 3):
        if k == i - 2:
            continue
        total += k + 1
    while total > 1:
        total -= 1
    y[i] = total


def test_lanes_run_a_turn_together_and_wait_after_the_loop_for_those_with_more():
    recording = played(own_turns, 3, np.zeros(3))
    assert told(recording)[2:-1] == [
        ("for k in range(i % 3):", 3),  # lane 0 finds that there is no turn for it
        ("if k == i - 2:", 2),
        ("continue", 1),  # lane 2
        ("total += k + 1", 1),  # lane 1
        ("for k in range(i % 3):", 2),
        ("if k == i - 2:", 1),
        ("total += k + 1", 1),
        ("for k in range(i % 3):", 1),
        ("while total > 1:", 3),
        ("total -= 1", 1),
        ("while total > 1:", 1),
    ]
    assert told(recording)[-1] == ("y[i] = total", 3)


def test_a_loop_s_variable_changes_at_the_loop_and_nothing_else_does():
    recording = played(own_turns, 3, np.zeros(3))
    first, second = step_at(recording, "for k"), step_at(recording, "for k", turn=1)
    assert recording.steps[first].changes == {"k": {1: 0, 2: 0}}
    assert recording.steps[second].changes == {"k": {2: 1}}
    assert recording.steps[second - 1].changes == {"total": {1: 1}}
    assert recording.values(second, 0) == {"i": {0: 0, 1: 1, 2: 2}, "total": {0: 0, 1: 1, 2: 0}, "k": {1: 0, 2: 1}}


@cuda.jit
def nested(y):
    i = cuda.threadIdx.x
    for a in range(2):
        for b in range(1 + (a + i) % 2):
            y[i, a, b] = 1


def test_an_inner_loop_begins_anew_with_each_turn_of_the_outer_one():
    recording = played(nested, 2, np.zeros((2, 2, 2)))
    assert [step.lanes for step in recording.steps if "y[i" in step.line.text] == [(0, 1), (1,), (0, 1), (0,)]


@cuda.jit
def through_shared(x, y):
    buffer = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    buffer[i] = x[i]
    cuda.syncthreads()
    y[i] = buffer[63 - i]


def test_a_warp_waits_at_a_barrier_for_the_other():
    recording = played(through_shared, 64, np.arange(64, dtype=np.float32), np.zeros(64, np.float32))
    assert recording.meetings == [Meeting("syncthreads", 64)]
    first, second = step_at(recording, "syncthreads"), step_at(recording, "syncthreads", warp=1)
    assert second == first + 1
    steps = recording.steps
    assert steps[first].standing[0].waiting == ALL
    assert steps[first].standing[0].meetings == (0,)
    assert steps[first].standing[1].waiting == ()
    assert (steps[first].meetings, steps[second].meetings) == ({0: ALL}, {0: ALL})
    assert [standing.waiting for standing in steps[second].standing] == [(), ()]
    assert all(step.meetings == {} for number, step in enumerate(steps) if number not in (first, second))


def test_a_step_has_its_requests():
    recording = played(through_shared, 64, np.arange(64, dtype=np.float32), np.zeros(64, np.float32))
    load, store = recording.steps[step_at(recording, "buffer[i] = x[i]", warp=1)].requests
    assert (load.operation, load.space, load.array, load.sectors, load.warp) == ("ld", "global", "x", 4, 1)
    assert [address - load.origin for address in load.addresses] == list(range(128, 256, 4))
    assert (store.operation, store.space, store.array, store.wavefronts) == ("st", "shared", "buffer", 1)
    assert store.lanes == ALL


@cuda.jit
def through_another_block(x, y):
    buffer = cuda.shared.array(32, float32)
    i = cuda.grid(1)
    buffer[i % 32] = x[i]
    cluster_sync()
    y[i] = load_from_block(buffer, i % 32, 1 - cluster_rank())
    cluster_sync()


def test_of_a_cluster_the_meetings_of_the_block_s_own_threads_are_played():
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    recording = played(through_another_block, 32, x, y, grid=2, play=1, cluster=2)
    assert y[0] == 32
    assert recording.meetings == [Meeting("cluster_sync", 32)] * 2
    load = recording.steps[step_at(recording, "load_from_block")].requests[0]
    assert (load.space, load.operation, load.array) == ("dshared", "ld", "buffer")
    assert recording.steps[-1].standing[0].returned == ALL


@cuda.jit
def by_slices(x, y):
    i = cuda.threadIdx.x
    y[2 * i : 2 * i + 2] = x[i]


def test_a_slice_is_a_request_for_each_of_its_elements():
    recording = played(by_slices, 32, np.ones(32, np.float32), np.zeros(64, np.float32))
    stores = [one for one in recording.steps[-1].requests if one.operation == "st"]
    offsets = [[address - one.origin for address in one.addresses] for one in stores]
    assert offsets == [list(range(0, 256, 8)), list(range(4, 256, 8))]


@cuda.jit
def meet_in_two_branches(y):
    i = cuda.threadIdx.x
    if i < 16:
        y[i] = cuda.shfl_xor_sync(0xFFFFFFFF, i, 16)
        y[i] += 100
    else:
        y[i] = cuda.shfl_xor_sync(0xFFFFFFFF, i, 16)
    cuda.syncwarp()


def test_lanes_wait_at_a_shuffle_for_those_of_another_branch():
    y = np.zeros(32, np.int64)
    recording = played(meet_in_two_branches, 32, y)
    assert [text for text, _ in told(recording)] == [
        "i = cuda.threadIdx.x",
        "if i < 16:",
        "y[i] = cuda.shfl_xor_sync(0xFFFFFFFF, i, 16)",
        "y[i] = cuda.shfl_xor_sync(0xFFFFFFFF, i, 16)",  # before the first branch goes on
        "y[i] = cuda.shfl_xor_sync(0xFFFFFFFF, i, 16)",  # the stores, when the values have come
        "y[i] += 100",
        "y[i] = cuda.shfl_xor_sync(0xFFFFFFFF, i, 16)",
        "cuda.syncwarp()",
    ]
    assert recording.steps[2].standing[0].waiting == tuple(range(16))
    assert recording.steps[3].standing[0].waiting == ()
    assert recording.steps[2].requests == ()
    assert [request.operation for request in recording.steps[4].requests] == ["st"]


@cuda.jit
def meet_in_groups(y):
    i = cuda.threadIdx.x
    mask = 0xFFFF if i < 16 else 0xF0000
    if i < 24:
        y[i] = cuda.shfl_xor_sync(mask, i, 1) if i < 20 else -1


def test_lanes_of_one_step_may_meet_in_groups_or_not_at_all():
    recording = played(meet_in_groups, 32, np.zeros(32, np.int64))
    (meet,) = [step for step in recording.steps if step.meetings]
    assert meet.lanes == tuple(range(24))
    assert sorted(meet.meetings.values()) == [tuple(range(16)), tuple(range(16, 20))]
    assert meet.standing[0].waiting == ()
    assert recording.steps[-1].standing[0].returned == ALL


@cuda.jit(device=True)
def halved(value):
    half = value / 2
    return half


@cuda.jit
def calls(x, y):
    i = cuda.threadIdx.x
    total = halved(x[i]) + halved(x[i + 1])
    y[i] = total


def test_a_device_function_s_statements_and_variables_are_recorded_at_each_call():
    recording = played(calls, 2, np.array([2.0, 4.0, 8.0]), np.zeros(2))
    assert [text for text, _ in told(recording)] == [
        "i = cuda.threadIdx.x",
        "total = halved(x[i]) + halved(x[i + 1])",
        "half = value / 2",
        "return half",
        "total = halved(x[i]) + halved(x[i + 1])",  # the second load, after the first call
        "half = value / 2",
        "return half",
        "y[i] = total",
    ]
    assert all(count == 2 for _, count in told(recording))
    inside = recording.values(5, 0)
    assert (inside["value"], inside["half"]) == ({0: 4.0, 1: 8.0}, {0: 2.0, 1: 4.0})
    after = recording.values(len(recording.steps) - 1, 0)
    assert (after["total"], after["half"]) == ({0: 3.0, 1: 6.0}, {})


@cuda.jit
def one_call_more(x, y):
    i = cuda.threadIdx.x
    y[i] = (halved(x[0]) if i > 0 else 0.0) + halved(x[1])


def test_lanes_at_two_calls_of_one_statement_are_not_together():
    recording = played(one_call_more, 2, np.array([2.0, 4.0]), np.zeros(2))
    assert [step.lanes for step in recording.steps if "half = " in step.line.text] == [(1,), (0, 1)]


@cuda.jit
def kinds_of_values(x, z, y):
    narrow = x[0]
    both = z[0]
    nothing = float32(math.nan)
    nothing = nothing + 1
    yes = narrow > 0
    y[0] = yes + both.real


def test_values_are_python_s_own_and_a_nan_stays_the_same():
    x, z = np.array([1.5], ml_dtypes.bfloat16), np.array([1 + 2j], np.complex64)
    recording = played(kinds_of_values, 1, x, z, np.zeros(1))
    values = {name: lanes[0] for name, lanes in recording.values(len(recording.steps) - 1, 0).items()}
    assert math.isnan(values.pop("nothing"))
    assert values == {"narrow": 1.5, "both": 1 + 2j, "yes": True}
    assert {type(value) for value in values.values()} == {float, complex, bool}
    assert recording.steps[3].changes == {}


def traced_apex(**options):
    x, ones = np.random.default_rng(0).normal(size=(3, 300)).astype(np.float32), np.ones(300, np.float32)
    arrays = np.zeros_like(x), np.zeros(3, np.float32), np.zeros(3, np.float32)
    return trace(build(float32), **options)[(1, 1), (32, 4)](x, ones, ones, np.float32(1e-5), *arrays), arrays


@pytest.fixture(scope="module")
def apex():
    return traced_apex(play=0)


def test_the_steps_make_the_requests_that_the_trace_counts_and_change_no_result(apex):
    (plain, expected), (counted, found) = traced_apex(), apex
    assert counted.metrics == plain.metrics
    assert [one.tobytes() for one in found] == [one.tobytes() for one in expected]
    recording = counted.play().recording
    requests = [request for step in recording.steps for request in step.requests]
    for operation in ("ld", "st"):
        costs = [one.cost for one in requests if (one.space, one.operation) == ("global", operation)]
        assert sum(costs) == counted.metrics[f"l1tex__t_sectors_pipe_lsu_mem_global_op_{operation}.sum"] > 0
    shared = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"
    waves = [one.cost for one in requests if (one.space, one.operation) == ("shared", "ld")]
    assert sum(waves) == counted.metrics[shared] > 0
    barriers = [one for one in recording.meetings if one.operation == "syncthreads"]
    assert len(barriers) == counted.metrics["normlab__barriers.sum"] > 0
    shuffles = [one for one in recording.meetings if one.operation.startswith("shfl")]
    assert len(shuffles) == counted.metrics["normlab__shuffles.sum"] > 0


def test_in_the_end_every_lane_has_returned_and_none_waits(apex):
    recording = apex[0].play().recording
    assert all((standing.returned, standing.waiting) == (ALL, ()) for standing in recording.steps[-1].standing)
    for number, meeting in enumerate(recording.meetings):
        met = [len(step.meetings.get(number, ())) for step in recording.steps]
        assert sum(met) == meeting.threads


@cuda.jit
def number_of_block(y):
    number = cuda.blockIdx.x + 10 * cuda.blockIdx.y
    y[cuda.blockIdx.x, cuda.blockIdx.y] = number


@pytest.mark.parametrize(("play", "number"), [(0, 0), (4, 11), ((2, 1), 12), ((1,), 1)])
def test_the_block_is_that_asked_for(play, number):
    recording = played(number_of_block, 1, np.zeros((3, 2)), grid=(3, 2), play=play)
    assert recording.values(1, 0) == {"number": {0: number}}
    assert recording.block == (number % 10, number // 10, 0)


@pytest.mark.parametrize("play", [6, -1, (3, 0), (0, 2), (0, 0, 1)])
def test_a_block_outside_of_the_grid_is_refused_before_the_launch(play):
    y = np.zeros((3, 2))
    with pytest.raises(ValueError, match=r"the grid of 3 x 2 x 1 blocks has the blocks 0 to 5"):
        trace(number_of_block, play=play)[(3, 2), 1](y)
    assert not y.any()


@pytest.mark.parametrize("play", [True, "0", 1.0, (), (0, 0, 0, 0), (0, "1")])
def test_what_is_no_block_is_refused(play):
    with pytest.raises(TypeError, match=r"play takes a block's number, such as 0, or its index, such as \(0, 1\), not"):
        trace(number_of_block, play=play)[(3, 2), 1](np.zeros((3, 2)))


def test_only_the_watched_variables_are_recorded():
    arrays = np.array([2.0, 4.0, 8.0]), np.zeros(2)
    assert played(calls, 2, *arrays, watch=("half", "i")).variables == ("i", "half")
    assert played(calls, 2, *arrays, watch="total").variables == ("total",)
    assert played(calls, 2, *arrays, watch=()).variables == ()


def test_an_unknown_variable_is_refused_before_the_launch_with_the_nearest_name():
    y = np.zeros(2)
    with pytest.raises(ValueError, match="kernel 'calls' has no variable 'totals'; did you mean 'total'"):
        trace(calls, play=0, watch=("i", "totals"))[1, 2](np.ones(3), y)
    with pytest.raises(ValueError, match="no variable 'q'; it has half, i, total, value, x, y"):
        trace(calls, play=0, watch=["q"])[1, 2](np.ones(3), y)
    with pytest.raises(TypeError, match=r"watch takes names of variables, such as \(\"total\",\), not 3"):
        trace(calls, play=0, watch=3)[1, 2](np.ones(3), y)
    with pytest.raises(ValueError, match="watch chooses the variables of a recording, which play=0 asks for"):
        trace(calls, watch="total")
    assert not y.any()


def test_a_trace_without_a_recording_says_how_to_make_one():
    with pytest.raises(ValueError, match=r"nothing was recorded to play: trace\(calls, play=0\) records block 0"):
        trace(calls)[1, 2](np.ones(3), np.zeros(2)).play()


def test_a_kernel_without_source_says_that_nothing_was_recorded():
    space = {}
    exec("def copy(x, y):\n    y[0] = x[0]\n", space)
    counted = trace(space["copy"], play=0)[1, 1](np.ones(1), np.ones(1))
    with pytest.raises(ValueError, match="nothing was recorded to play: the source of 'copy' cannot be read"):
        counted.play()


def test_a_long_recording_ends_where_the_first_thread_s_does(monkeypatch):
    monkeypatch.setattr(player, "MOST", 3 * 7)
    recording = played(own_turns, 3, np.zeros(3))
    assert recording.cut
    # Each of the three threads has seven events. The last of lane 2, which takes most turns, is the second `if`.
    assert told(recording)[-2:] == [("for k in range(i % 3):", 2), ("if k == i - 2:", 1)]
    assert not any(standing.returned for step in recording.steps for standing in step.standing)
    whole = played(own_turns, 1, np.zeros(3))
    assert not whole.cut
    assert whole.steps[-1].standing[0].returned == (0,)


@cuda.jit
def wait_for_a_flag(flag, y):
    i = cuda.threadIdx.x
    if i == 0:
        cuda.atomic.add(flag, 0, 1)
    turns = 0
    while cuda.atomic.add(flag, 0, 0) == 0:
        turns += 1
    y[i] = 1


@pytest.mark.parametrize("schedule", ["forward", "reverse"])
def test_a_spin_loop_is_played_turn_by_turn(schedule):
    recording = played(wait_for_a_flag, 64, np.zeros(1, np.int32), np.zeros(64), schedule=schedule)
    turns = recording.values(len(recording.steps) - 1, 1)["turns"]
    assert all(count > 0 for count in turns.values()) is (schedule == "reverse")
    assert recording.steps[-1].standing[1].returned == ALL
    atomics = [one for step in recording.steps for one in step.requests if one.operation == "atom"]
    assert len(atomics) >= 3
