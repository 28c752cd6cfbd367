"""`team_sync`: who waits for whom, what it orders, what a trace counts, what is refused, how a hang is told."""

import numpy as np
import pytest
from numba import cuda, float32

from normlab.engine import team_sync
from normlab.sim import DeadlockError, SimulationError, sanitize, simulate, trace
from normlab.sim.tracing.log import Log

every_schedule = pytest.mark.parametrize("schedule", ["forward", "reverse", 0, 1, 12345])


@cuda.jit
def mirrored(x, out):
    """Each of four teams of 64 threads reverses rows of x, (turns, 4, 64), through its own part of shared memory."""
    tile = cuda.shared.array((4, 64), float32)
    thread, team = cuda.threadIdx.x, cuda.threadIdx.y
    for turn in range(1 + team):
        tile[team, thread] = x[turn, team, thread]
        team_sync(team + 1, 64)
        out[turn, team, thread] = tile[team, 63 - thread]
        team_sync(team + 1, 64)


def line(kernel, offset):
    """The number of a kernel's line, counted from its `def`."""
    return kernel.py_func.__code__.co_firstlineno + 1 + offset


def rows():
    x = np.arange(1024, dtype=np.float32).reshape(4, 4, 64)
    return x, np.zeros_like(x)


@every_schedule
def test_each_team_waits_for_itself_alone_as_often_as_it_likes(schedule):
    x, out = rows()
    want = np.where(np.arange(4)[:, None, None] <= np.arange(4)[None, :, None], x[..., ::-1], 0)
    simulate(mirrored, schedule)[1, (64, 4)](x, out)
    np.testing.assert_array_equal(out, want)
    report = sanitize(mirrored, [out], schedule)[1, (64, 4)](x, out)
    assert not report.findings, str(report)


@cuda.jit
def waited_for_by_another_team(flag, out):
    if cuda.threadIdx.y == 0:
        team_sync(1, 64)
        flag[0] = 1
    else:
        while cuda.ldcv(flag, 0) == 0:
            cuda.nanosleep(100)
        team_sync(2, 64)
    out[cuda.threadIdx.y, cuda.threadIdx.x] = 1
    cuda.syncthreads()


@every_schedule
def test_a_team_goes_on_while_another_is_elsewhere(schedule):
    out = np.zeros((2, 64))
    simulate(waited_for_by_another_team, schedule)[2, (64, 2)](np.zeros(1), out)
    assert out.all()


@every_schedule
def test_a_number_serves_again_behind_a_barrier_of_the_block(schedule):
    @cuda.jit
    def kernel(x, out):
        tile = cuda.shared.array(96, float32)
        thread = cuda.threadIdx.x
        tile[thread] = x[thread]
        if thread < 64:
            team_sync(1, 64)
            out[0, thread] = tile[63 - thread]
        cuda.syncthreads()
        tile[thread] = x[thread] + 1
        team_sync(1, 96)
        out[1, thread] = tile[95 - thread]

    x, out = np.arange(96, dtype=np.float32), np.zeros((2, 96), np.float32)
    report = sanitize(kernel, schedule=schedule)[1, 96](x, out)
    assert not report.findings, str(report)
    np.testing.assert_array_equal(out[0, :64], x[63::-1])
    np.testing.assert_array_equal(out[1], x[::-1] + 1)


# --- what it orders --------------------------------------------------------------------------------------------------


@cuda.jit
def read_by_another_team(x, out):
    tile = cuda.shared.array((2, 64), float32)
    thread, team = cuda.threadIdx.x, cuda.threadIdx.y
    team_sync(team + 1, 64)
    tile[team, thread] = x[team, thread]
    team_sync(team + 1, 64)
    out[team, thread] = tile[1 - team, thread]


@cuda.jit
def overwritten_in_the_next_turn(x, out):
    tile = cuda.shared.array((2, 64), float32)
    thread, team = cuda.threadIdx.x, cuda.threadIdx.y
    for _ in range(2):
        tile[team, thread] = x[team, thread]
        team_sync(team + 1, 64)
        out[team, thread] += tile[team, 63 - thread]


@cuda.jit
def no_barrier_within_the_team(x, out):
    tile = cuda.shared.array((2, 64), float32)
    thread, team = cuda.threadIdx.x, cuda.threadIdx.y
    team_sync(team + 1, 64)
    tile[team, thread] = x[team, thread]
    out[team, thread] = tile[team, 63 - thread]


@every_schedule
@pytest.mark.parametrize(
    ("kernel", "lines", "advice"),
    [
        (read_by_another_team, (4, 6), "no barrier between the write at line {} and the read at line {}: put "
            "cuda.syncthreads() between them"),
        (overwritten_in_the_next_turn, (4, 6), "no barrier between the read at line {1} and the write at line {0} in "
            "the loop's next turn: put team_sync() at the end of the body of the loop at line {loop}"),
        (no_barrier_within_the_team, (4, 5), "no barrier between the write at line {} and the read at line {}: put "
            "team_sync() between them"),
    ],
)  # fmt: skip
def test_a_race_is_found_between_teams_and_in_a_team(kernel, lines, advice, schedule):
    x, out = np.ones((2, 64), np.float32), np.zeros((2, 64), np.float32)
    (finding,) = sanitize(kernel, schedule=schedule)[1, (64, 2)](x, out).findings
    where = tuple(line(kernel, offset) for offset in lines)
    assert (finding.kind, finding.array, finding.lines) == ("race", "tile", where)
    assert finding.advice == advice.format(*where, loop=line(kernel, 3))


@every_schedule
def test_a_race_with_one_of_many_readers_of_another_team_is_found(schedule):
    @cuda.jit
    def kernel(out):
        tile = cuda.shared.array(1, float32)
        thread, team = cuda.threadIdx.x, cuda.threadIdx.y
        if thread == 0 and team == 0:
            tile[0] = 1
        cuda.syncthreads()
        for _ in range(3):
            team_sync(team + 1, 128)
            out[team, thread] += tile[0]
        team_sync(team + 1, 128)
        if thread == 0 and team == 1:
            tile[0] = 2

    report = sanitize(kernel, schedule=schedule)[1, (128, 3)](np.zeros((3, 128), np.float32))
    assert [(one.kind, one.lines) for one in report.findings] == [("race", (line(kernel, 8), line(kernel, 11)))]
    (finding,) = report.findings
    assert {finding.first.thread[1], finding.second.thread[1]} in ({0, 1}, {1, 2})


# --- what is counted -------------------------------------------------------------------------------------------------


def test_a_trace_counts_each_team_s_barrier_at_its_line():
    counted = trace(mirrored)[2, (64, 4)](*rows())
    assert counted.metrics["normlab__barriers.sum"] == 2 * 2 * (1 + 2 + 3 + 4)
    by_line = {row.line.number: row.metrics["normlab__barriers.sum"] for row in counted.by_line()}
    assert (by_line[line(mirrored, 6)], by_line[line(mirrored, 8)]) == (20, 20)
    assert counted.metrics["l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"] == 2 * 2 * (1 + 2 + 3 + 4)


def test_the_log_is_emptied_when_a_team_stands(monkeypatch):
    whole = trace(mirrored)[2, (64, 4)](*rows())
    monkeypatch.setattr("normlab.sim.tracing.recorder.LONG", 300)
    longest = []
    take = Log.take
    monkeypatch.setattr(Log, "take", lambda log: longest.append(len(log)) or take(log))
    assert trace(mirrored, engine="scheduler")[2, (64, 4)](*rows()).as_dict() == whole.as_dict()
    assert max(longest) < 1000  # of 2 x 2560 accesses


def test_values_flow_within_a_team_a_step_on_from_barrier_to_barrier():
    flows = trace(mirrored)[1, (64, 4)](*rows()).flows
    assert {(flow.source // 64, flow.target // 64) for flow in flows.flows} == {(team, team) for team in range(4)}
    assert {flow.start for flow in flows.flows if flow.source // 64 == 3} == {0, 2, 4, 6}
    assert all(flow.end == flow.start + 1 for flow in flows.flows)
    assert not flows.barriers  # none is the whole block's


# --- what goes wrong -------------------------------------------------------------------------------------------------


@cuda.jit
def called_with(number, threads, other_number, other_threads):
    if cuda.threadIdx.x < 32:
        team_sync(number, threads)
    else:
        team_sync(other_number, other_threads)


@pytest.mark.parametrize(
    ("operands", "text"),
    [
        ((0, 32, 2, 32), "team_sync has the barriers 1 to 15, and no 0"),
        ((1, 32, 16, 32), "team_sync has the barriers 1 to 15, and no 16"),
        ((1, 48, 2, 32), "team_sync waits for whole warps of 32 threads, in a block of 64, and not for 48"),
        ((1, 0, 2, 32), "team_sync waits for whole warps of 32 threads, in a block of 64, and not for 0"),
        ((1, 96, 2, 32), "team_sync waits for whole warps of 32 threads, in a block of 64, and not for 96"),
        ((1, 32, 1, 64), "a thread that waits for (32|64) at barrier 1 meets one that waits for (64|32) there"),
        ((1, 32, 1, 32), "more than 32 threads come to barrier 1 at the same time.*a barrier of its own"),
    ],
)
@every_schedule
def test_operands_that_no_gpu_takes_are_refused(operands, text, schedule):
    with pytest.raises(SimulationError, match=text):
        simulate(called_with, schedule)[1, 64](*operands)


def test_a_float_is_refused_as_numba_refuses_it():
    with pytest.raises(TypeError, match="float"):
        simulate(called_with)[1, 64](1, 32.0, 2, 32)


def test_parts_of_two_warps_are_no_team():
    @cuda.jit
    def kernel():
        if cuda.laneid < 16:
            team_sync(3, 32)

    with pytest.raises(SimulationError, match=r"only some lanes of a warp come to barrier 3.*team_sync\(3, 32\)"):
        simulate(kernel)[1, 64]()


@cuda.jit
def one_warp_is_missing(x, out):
    thread = cuda.threadIdx.x
    if thread >= 96:
        return
    if thread < 32 or x[0] > 1:
        team_sync(2, 64)
    else:
        cuda.syncthreads()
    out[thread] = 1


@every_schedule
def test_a_deadlock_names_the_barrier_and_how_many_came_of_how_many(schedule):
    arrays = np.zeros(1), np.zeros(128)
    first = line(one_warp_is_missing, 0)
    with pytest.raises(DeadlockError) as info:
        simulate(one_warp_is_missing, schedule)[1, 128](*arrays)
    assert str(info.value) == (
        "deadlock in kernel 'one_warp_is_missing':\n"
        f"  32 threads at team_sync 2, {__file__}:{first + 5}: team_sync(2, 64)"
        "  (e.g. block (0, 0, 0), thread (0, 0, 0))\n"
        "    waits for 32 more threads: 32 of 64 are at barrier 2\n"
        f"  64 threads at syncthreads, {__file__}:{first + 7}: cuda.syncthreads()"
        "  (e.g. block (0, 0, 0), thread (32, 0, 0))\n"
        "    waits for 32 more threads of its block to reach a barrier\n"
        "  32 of the threads have returned"
    )
    (finding,) = sanitize(one_warp_is_missing, schedule=schedule)[1, 128](*arrays).findings
    assert (finding.kind, finding.lines) == ("deadlock", (first + 5, first + 7))
    assert f"the team_sync 2 at line {first + 5} waits for 32 more threads: 32 of 64 are at barrier 2" in finding.advice


def test_a_thread_that_has_returned_is_missing_at_its_team_s_barrier():
    @cuda.jit
    def kernel(out):
        if cuda.threadIdx.x >= 40:
            return
        team_sync(1, 64)
        out[cuda.threadIdx.x] = 1

    with pytest.raises(
        DeadlockError, match="24 more threads: 40 of 64 are at barrier 1\n  24 of the threads have returned"
    ):
        simulate(kernel)[1, 64](np.zeros(64))
