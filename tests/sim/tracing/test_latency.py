"""The model of `Playback.latency`, by hand."""

import numpy as np
import pytest
from numba import cuda, float32

from normlab.engine.device.asynchronous import commit_copies, copy_async, wait_copies
from normlab.sim import trace
from normlab.sim.language.source import Line
from normlab.sim.tracing.play import Latencies
from normlab.sim.tracing.play.latency import MOST_WARPS, Instruction, schedule

LATENCIES = Latencies(arithmetic=4, shuffle=20, barrier=10, shared=30, memory=100)


def instruction(wait, slots=1, meets=False):
    return Instruction(Line("kernel.py", 1), slots, wait, "memory", meets)


def test_one_warp_waits_for_each_instruction():
    found = schedule([instruction(4), instruction(100, slots=2), instruction(4)], 1)
    # 0: issue, 4: two slots, ready 100 cycles after the second of them, which is issued in cycle 5; 105 + 4 is the end
    assert found.starts == [[0, 4, 105]]
    assert (found.cycles, found.warps) == (109, 1)
    assert found.busy == pytest.approx(4 / 109)


def test_warps_issue_in_the_waits_of_others_and_never_in_the_same_cycle():
    found = schedule([instruction(4)] * 3, 3)
    assert found.starts == [[0, 4, 8], [1, 5, 9], [2, 6, 10]]
    assert found.cycles == 14
    crowded = schedule([instruction(2)] * 3, 3)
    assert crowded.starts == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
    assert crowded.busy == 9 / 10


def test_at_a_barrier_all_warps_wait_for_the_last():
    found = schedule([instruction(4), instruction(10, meets=True), instruction(4)], 3)
    # the last one comes in cycle 6, and all are ready 10 cycles later
    assert found.starts == [[0, 4, 16], [1, 5, 17], [2, 6, 18]]


def test_as_many_warps_as_little_s_law_asks_for_keep_the_scheduler_busy():
    stream = [instruction(1), instruction(1), instruction(1), instruction(13)]
    alone = schedule(stream, 1)
    assert alone.cycles == 16
    assert schedule(stream * 400, 4).busy > 0.99
    assert schedule(stream * 400, 3).busy == pytest.approx(3 / 4, rel=0.01)
    assert schedule(stream * 400, 8).busy > 0.99


@cuda.jit
def all_kinds(x, y):
    buffer = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    total = x[i] + x[i + 64]
    total += cuda.shfl_xor_sync(0xFFFFFFFF, total, 1)
    buffer[i] = total
    cuda.syncthreads()
    total = buffer[63 - i]
    cuda.syncwarp()
    y[i] = total


def of_all_kinds(latencies=LATENCIES):
    return trace(all_kinds, play=0)[1, 64](np.ones(128, np.float32), np.zeros(64, np.float32)).play(latencies)


def test_a_statement_s_latency_is_that_of_what_it_waits_for():
    found = [(one.kind, one.wait, one.slots, one.meets) for one in of_all_kinds().latency().instructions]
    assert found == [
        ("arithmetic", 4, 1, False),
        ("arithmetic", 4, 1, False),
        ("memory", 100, 2, False),  # two loads, whose waits overlap
        ("shuffle", 20, 1, False),
        ("arithmetic", 4, 1, False),  # nothing waits for a store
        ("barrier", 10, 1, True),
        ("shared", 30, 1, False),
        ("shuffle", 20, 1, False),
        ("arithmetic", 4, 1, False),
    ]


@cuda.jit
def copied(x):
    tile = cuda.shared.array(32, float32)
    copy_async(tile, cuda.threadIdx.x, x, cuda.threadIdx.x, 1)
    commit_copies()
    wait_copies(0)
    cuda.atomic.add(x, 0, 1)


def test_an_atomic_is_waited_for_and_an_asynchronous_copy_is_not():
    found = trace(copied, play=0)[1, 32](np.zeros(32, np.float32)).play(LATENCIES).latency().instructions
    assert [one.kind for one in found] == ["arithmetic"] * 4 + ["memory"]
    assert found[1].slots == 2


def test_the_text_says_what_follows_and_that_it_is_a_model():
    latency = of_all_kinds().latency()
    # 4 + 4 + 101 + 20 + 4 + 10 + 30 + 20 + 4 cycles, 10 instructions
    assert (latency.schedules[0].cycles, latency.needed, len(latency.schedules)) == (197, 20, MOST_WARPS)
    text = str(latency)
    assert text.startswith(
        "A model, not a measurement. One warp issues 10 instructions in 197 cycles; its longest wait "
    )
    line = all_kinds.py_func.__code__.co_firstlineno + 4
    assert f"the global memory of line {line}, 100 cycles. By Little's law 197 / 10 = 19.7 warps, so 20, would" in text
    assert "a scheduler holds 16 at most. With 16 the scheduler" in text
    quick = of_all_kinds(Latencies(2, 2, 2, 2, 2)).latency()
    assert (quick.needed, len(quick.schedules)) == (2, 2)
    assert "that is no more than the 16 that a scheduler holds" in str(quick)


@cuda.jit
def unequal(y):
    i = cuda.threadIdx.x
    if i >= 32:
        y[i] = 1


def test_the_warp_with_the_most_steps_is_the_default():
    playback = trace(unequal, play=0)[1, 64](np.zeros(64)).play()
    assert [len(playback.latency(warp).instructions) for warp in (None, 0, 1)] == [3, 2, 3]
    with pytest.raises(ValueError, match="the block has the warps 0 to 1, and no 2"):
        playback.latency(2)


def test_a_latency_below_a_cycle_is_refused():
    with pytest.raises(ValueError, match="a latency is at least 1 cycle, and shared is 0"):
        Latencies(shared=0)
