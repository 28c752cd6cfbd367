"""The vectorised engine runs what it can prove equal to the scheduler, and leaves everything else as it was."""

import inspect
import math

import numpy as np
import pytest
from numba import cuda, float32, int32
from numba.cuda.random import xoroshiro128p_dtype, xoroshiro128p_normal_float32
from sim.vectorised.engines import VECTORISED, agree, outcomes

from normlab.engine import cut_into, flat, load_bits, load_words_if, rounded, shift_of, widen_into
from normlab.sim import SimulationError, simulate
from normlab.sim.language import rewrite
from normlab.sim.machine.launch import FEWEST_THREADS
from normlab.sim.vectorised import calls, engine, races

FULL = 0xFFFFFFFF


@cuda.jit
def scaled(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i] * 2


@cuda.jit
def one_too_far(x, out):
    i = cuda.grid(1)
    out[i] = x[i + 1]


@cuda.jit
def neighbour_without_barrier(x, out):
    shared = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    shared[t] = x[t]
    out[t] = shared[(t + 1) % 64]


@cuda.jit
def neighbour_within_the_warp(x, out):
    shared = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    shared[t] = x[t]
    cuda.syncwarp()
    out[t] = shared[t ^ 1]


@cuda.jit
def neighbour_in_another_warp(x, out):
    shared = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    shared[t] = x[t]
    cuda.syncwarp()
    out[t] = shared[63 - t]


@cuda.jit
def block_after_block(x, out):
    t, b = cuda.threadIdx.x, cuda.blockIdx.x
    out[b + 1, t] = out[b, t] + x[t]


@cuda.jit
def everyone_writes(x, out):
    out[0] = cuda.threadIdx.x


@cuda.jit
def everyone_raises_a_flag(x, out):
    if x[cuda.grid(1)] > 0:
        out[0] = 1


def test_an_explained_launch_says_which_engine_ran():
    x = np.arange(100, dtype=np.float32)
    assert agree(scaled, (2, 64), x, np.zeros_like(x)) == VECTORISED
    assert simulate(scaled)[2, 64](x, np.zeros_like(x)) is None
    small = f"the scheduler ran, because the launch has {FEWEST_THREADS - 1} threads"
    assert simulate(scaled, explain=True)[1, FEWEST_THREADS - 1](x, np.zeros_like(x)) == small
    said = simulate(scaled, schedule="reverse", cluster=2, explain=True)[2, 64](x, np.zeros_like(x))
    assert said == "the scheduler ran, because the schedule is 'reverse'"


@cuda.jit
def counted(x, out, count):
    i = cuda.grid(1)
    cuda.atomic.add(count, 0, 1)
    out[i] = x[i] + cuda.shfl_xor_sync(0xFFFFFFFF, x[i], 1)


@cuda.jit
def summed(x, out, count):
    cuda.atomic.add(out, 0, x[cuda.grid(1)])


@cuda.jit
def numbered(x, out, count):
    out[cuda.atomic.add(count, 0, 1)] = x[cuda.grid(1)]


@cuda.jit
def last_writes(x, out, count):
    out[0] = x[cuda.grid(1)]


@pytest.mark.parametrize(
    ("kernel", "because"),
    [
        (counted, None),
        (summed, "the schedule decides the order of atomics"),
        (numbered, "the schedule decides the order of atomics"),
        (last_writes, "threads write to the same element"),
    ],
)
@pytest.mark.parametrize("schedule", ["reverse", 5])
def test_another_schedule_runs_at_once_where_it_changes_nothing(kernel, because, schedule):
    found = []
    for which in ("auto", "scheduler"):
        x, out, count = np.random.default_rng(0).normal(size=128), np.zeros(128), np.zeros(1, np.int64)
        said = simulate(kernel, schedule=schedule, engine=which, explain=True)[2, 64](x, out, count)
        found.append((said, out.tobytes(), count.tobytes()))
    assert found[0][0] == VECTORISED if because is None else because in found[0][0]
    assert found[0][1:] == found[1][1:]


def test_an_engine_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="engine is one of auto, vectorised, scheduler, not 'fast'"):
        simulate(scaled, engine="fast")


def test_an_error_is_the_schedulers_with_thread_block_and_line():
    x = np.arange(64, dtype=np.float32)
    error, words, notes = agree(one_too_far, (2, 32), x, np.zeros_like(x))
    assert error is IndexError
    assert "index 64 is out of bounds" in words
    assert "block (1, 0, 0), thread (31, 0, 0)" in notes[-1]


def test_an_engine_that_must_not_fall_back_says_why_it_gives_up_and_restores_the_arrays():
    x, out = np.arange(64, dtype=np.float32), np.full(64, 7, np.float32)

    @cuda.jit
    def stores_first(x, out):
        i = cuda.grid(1)
        out[i] = x[i]
        out[i] = x[i + 1]

    with pytest.raises(SimulationError, match=r"gives up, because .*test_engine.py:.* an index is out of bounds"):
        simulate(stores_first, engine="vectorised")[2, 32](x, out)
    assert (out == 7).all()


def test_a_race_is_left_to_the_schedule():
    x = np.arange(64, dtype=np.float32)
    said = agree(neighbour_without_barrier, (1, 64), x, np.zeros_like(x))
    assert "the same element between two barriers" in said
    assert "the same element" in agree(neighbour_in_another_warp, (1, 64), x, np.zeros_like(x))
    assert "different numbers" in agree(everyone_writes, (1, 64), x, np.zeros_like(x))


def test_a_warp_that_meets_has_no_race_among_its_lanes():
    x = np.arange(64, dtype=np.float32)
    assert agree(neighbour_within_the_warp, (1, 64), x, np.zeros_like(x)) == VECTORISED


def test_threads_may_write_the_same_number_to_one_element():
    x = np.arange(64, dtype=np.float32) - 60
    assert agree(everyone_raises_a_flag, (1, 64), x, np.zeros(1, np.int32)) == VECTORISED


def test_blocks_that_read_what_earlier_blocks_wrote_run_one_at_a_time():
    x, out = np.arange(64, dtype=np.float32), np.zeros((6, 64), np.float32)
    assert agree(block_after_block, (5, 64), x, out) == VECTORISED


def test_fewer_blocks_run_at_once_where_so_many_access_too_much_to_compare(monkeypatch):
    @cuda.jit
    def counted(x, out):
        i = cuda.grid(1)
        for k in range(8):
            out[i] += x[(i + k) % x.size]

    together = []
    chunk = engine.Machine
    monkeypatch.setattr(races, "MOST_LOGGED", 2048)
    monkeypatch.setattr(engine, "LANES", 1024)
    monkeypatch.setattr(
        engine, "Machine", lambda launch, first, blocks: together.append(blocks) or chunk(launch, first, blocks)
    )
    x = np.arange(512, dtype=np.float32)
    assert agree(counted, (16, 32), x, np.zeros(512, np.float32)) == VECTORISED
    assert set(together[-3:]) == {2}  # after 16 and 8
    monkeypatch.setattr(races, "MOST_LOGGED", 256)
    assert "too much memory between two barriers" in agree(counted, (16, 32), x, np.zeros(512, np.float32))


def test_the_last_block_to_arrive_adds_up_what_the_others_have_left():
    @cuda.jit
    def total(x, parts, count, out):
        last = cuda.shared.array(1, int32)
        t, b = cuda.threadIdx.x, cuda.blockIdx.x
        cuda.atomic.add(parts, b, x[cuda.grid(1)])
        cuda.syncthreads()
        if t == 0:
            cuda.threadfence()
            last[0] = cuda.atomic.add(count, 0, 1) == cuda.gridDim.x - 1
        cuda.syncthreads()
        if last[0] and t == 0:
            for k in range(parts.size):
                out[0] += parts[k]

    x = np.random.default_rng(0).normal(size=256).astype(np.float32)
    said = agree(total, (4, 64), x, np.zeros(4, np.float32), np.zeros(1, np.int32), np.zeros(1, np.float32))
    assert said == VECTORISED


def test_float_sums_have_the_schedulers_order():
    @cuda.jit
    def sums(x, out):
        for turn in range(3):
            cuda.atomic.add(out, cuda.threadIdx.x % 3, x[cuda.grid(1)] * (turn + 1))

    x = np.random.default_rng(1).normal(size=256).astype(np.float32) * 1e4
    assert agree(sums, (2, 128), x, np.zeros(3, np.float32)) == VECTORISED


def test_an_atomic_gives_each_thread_what_the_ones_before_it_have_left():
    @cuda.jit
    def tickets(out, count, best):
        i = cuda.grid(1)
        out[i] = cuda.atomic.add(count, i % 3, i)
        best[i] = cuda.atomic.cas(count, 3, 0, i + 1)

    said = agree(tickets, (1, 64), np.zeros(64, np.int64), np.zeros(4, np.int32), np.zeros(64, np.int64))
    assert said == VECTORISED


def test_two_arguments_that_share_memory_are_left_to_the_scheduler():
    memory = np.arange(65, dtype=np.float32)
    said = simulate(scaled, explain=True)[2, 32](memory[1:], memory[:-1])
    assert "shares memory with another argument" in said
    memory = np.arange(64, dtype=np.float32)
    assert simulate(scaled, explain=True)[2, 32](memory, memory) == VECTORISED
    assert (memory == np.arange(64) * 2).all()


def accessors(table):
    """Return device functions that load and store in an array which both call `table`."""

    @cuda.jit(device=True)
    def loaded(i):
        return table[i]

    @cuda.jit(device=True)
    def stored(i, value):
        table[i] = value

    return loaded, stored


def test_a_race_on_an_array_from_outside_is_left_to_the_scheduler():
    table, other, memory = np.ones(64, np.int64), np.ones(64, np.int64), np.zeros(65, np.int64)
    behind = memory[1:]
    (load_table, store_table), (_, store_other) = accessors(table), accessors(other)

    @cuda.jit
    def neighbour_in_a_closures_array(y):
        i = cuda.grid(1)
        y[i] = table[(i + 1) % 64]
        table[i] = y[i] + 1

    @cuda.jit
    def another_array_of_the_same_name_is_written_first(y):
        i = cuda.grid(1)
        y[i] = load_table((i + 1) % 64)
        store_other(i, 3)
        store_table(i, y[i] + 1)

    @cuda.jit
    def an_array_that_overlaps_is_met_late(x, y):
        i = cuda.grid(1)
        x[i] = i + 1
        y[i] = behind[(i + 5) % 64]

    for kernel, given, because in (
        (neighbour_in_a_closures_array, (), "the same element between two barriers"),
        (another_array_of_the_same_name_is_written_first, (), "the same element between two barriers"),
        (an_array_that_overlaps_is_met_late, (memory,), "shares memory with one that the kernel has written"),
    ):
        found = []
        for which in ("auto", "scheduler"):
            table[:], other[:], memory[:], y = 1, 1, 0, np.zeros(64, np.int64)
            said = simulate(kernel, engine=which, explain=True)[1, 64](*given, y)
            found.append((y.tolist(), table.tolist(), memory.tolist()))
            assert which == "scheduler" or because in said
        assert found[0] == found[1]


def test_views_of_any_strides_are_read_and_written_in_place():
    memory = np.arange(400, dtype=np.float32).reshape(20, 20)
    out = np.zeros((20, 20), np.float32)

    @cuda.jit
    def transposed(x, out):
        i, j = cuda.grid(2)
        if i < x.shape[0] and j < x.shape[1]:
            out[j, i] = x[i, -1 - j]

    view = out[::-1, 2:12]
    assert simulate(transposed, explain=True)[(2, 2), (16, 16)](memory[::2, ::-1], view.T[:, :][:10, :].T) == VECTORISED
    assert (view == memory[::2].T).all()


def test_lanes_that_wait_at_two_barriers_are_left_to_the_scheduler():
    @cuda.jit
    def apart(out):
        t = cuda.threadIdx.x
        if t < 32:
            cuda.syncthreads()
            out[t] = 1
        else:
            cuda.syncthreads()
            out[t] = 2

    assert "only some threads of a block" in agree(apart, (1, 64), np.zeros(64, np.int32))


def test_blocks_may_leave_a_loop_at_different_turns():
    @cuda.jit
    def rows(x, out):
        shared = cuda.shared.array(32, float32)
        t, row = cuda.threadIdx.x, cuda.blockIdx.x
        while row < x.shape[0]:
            shared[t] = x[row, t]
            cuda.syncthreads()
            out[row, t] = shared[31 - t] + cuda.shfl_xor_sync(FULL, shared[t], 3)
            cuda.syncthreads()
            row += cuda.gridDim.x

    x = np.random.default_rng(2).normal(size=(10, 32)).astype(np.float32)
    assert agree(rows, (4, 32), x, np.zeros_like(x)) == VECTORISED


def test_a_variable_of_two_types_is_rounded_in_each_lane_as_in_the_scheduler():
    @cuda.jit
    def two_types(x, out):
        i = cuda.grid(1)
        total = 0.0
        if i % 3:
            total = x[i]
        out[i] = total / 3 + math.sqrt(total + 1)

    x = np.random.default_rng(3).uniform(size=64).astype(np.float32)
    assert agree(two_types, (1, 64), x, np.zeros(64)) == VECTORISED


def test_a_kernel_that_fails_again_and_again_is_tried_seldom(monkeypatch):
    tried = []
    attempts = engine._attempts
    monkeypatch.setattr(engine, "_attempts", lambda *given: tried.append(1) or attempts(*given))
    x = np.arange(64, dtype=np.float32)
    launch = simulate(neighbour_without_barrier, explain=True)[1, 64]
    said = [launch(x, np.zeros_like(x)) for _ in range(12)]
    assert len(tried) == engine.PATIENCE
    assert said[-1].startswith("the scheduler ran, because as before, ")


def test_a_loop_that_waits_for_another_thread_ends_with_the_schedulers_error():
    @cuda.jit
    def waits(flag, out):
        while flag[0] == 0:
            cuda.threadfence()
        out[cuda.grid(1)] = 1

    error, words, _ = agree(waits, (1, 64), np.zeros(1, np.int32), np.zeros(64, np.int32))
    assert "livelock" in words
    assert issubclass(error, SimulationError)


def test_a_store_into_constant_memory_is_the_schedulers_error():
    table = np.arange(64, dtype=np.float32)

    @cuda.jit
    def stores(out):
        constant = cuda.const.array_like(table)
        i = cuda.grid(1)
        out[i] = constant[i]
        if i > 62:
            constant[i] = 1

    error, words, _ = agree(stores, (1, 64), np.zeros(64, np.float32))
    assert error is ValueError
    assert "read-only" in words
    assert (table == np.arange(64)).all()


def test_one_lane_that_meets_its_warp_alone_has_scalars():
    @cuda.jit
    def alone(x, out):
        t = cuda.threadIdx.x
        if t > 0:
            return
        lanes, same = cuda.match_all_sync(1, x[t])
        out[t] = lanes + cuda.ballot_sync(1, same) + cuda.shfl_sync(1, t, 0)

    assert agree(alone, (1, 64), np.arange(64, dtype=np.int32), np.zeros(64, np.int32)) == VECTORISED


def test_a_kernel_that_prints_does_so_once_and_in_the_schedulers_order(capsys):
    @cuda.jit
    def prints(out):
        i = cuda.grid(1)
        out[i] = i
        if i % 20 == 0:
            print(i)

    assert "of a call of print" in simulate(prints, explain=True)[1, 64](np.zeros(64))
    assert capsys.readouterr().out.split() == ["0", "20", "40", "60"]


def test_shared_memory_begins_as_the_schedulers_does():
    @cuda.jit
    def contents(floats, ints):
        i = cuda.grid(1)
        floats[i] = cuda.shared.array(64, float32)[cuda.threadIdx.x]
        ints[i] = cuda.local.array(2, int32)[1]

    assert agree(contents, (2, 64), np.zeros(128, np.float32), np.zeros(128, np.int32)) == VECTORISED


def test_the_middle_of_a_chained_comparison_is_computed_once():
    @cuda.jit
    def kernel(counts, out):
        i = cuda.grid(1)
        if i % 2 <= cuda.atomic.add(counts, i, 1) < 1:
            out[i] = 1

    counts, out = np.zeros(64, np.int32), np.zeros(64, np.int32)
    assert agree(kernel, (2, 32), counts, out) == VECTORISED
    simulate(kernel, engine="vectorised")[2, 32](counts, out)
    assert (counts == 1).all()
    assert (out == (np.arange(64) % 2 == 0)).all()


def test_variables_have_the_types_that_the_compiler_tells():
    @cuda.jit
    def kernel(x, n, out):
        i = cuda.grid(1)
        value = x[i]  # a float64, because of the other assignment
        count = n  # an index that is an int64
        if i % 3 == 0:
            value = 0.1
            count = 2
        out[i] = value * value + count

    x = np.random.default_rng(0).normal(size=64).astype(np.float32)
    results = []
    for which in ("vectorised", "scheduler"):
        results.append(np.zeros(64))
        simulate(kernel, check=True, engine=which)[2, 32](x, 5, results[-1])
    unchecked = np.zeros(64)
    simulate(kernel, engine="vectorised")[2, 32](x, 5, unchecked)
    assert results[0].tobytes() == results[1].tobytes()
    assert results[0].tobytes() != unchecked.tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_engines_words_bits_and_shifts_are_run_in_all_lanes(dtype):
    width = 16 // np.dtype(dtype).itemsize

    @cuda.jit
    def cut_out(x, out, bits, plain):
        words = cuda.local.array(8, int32)
        values = cuda.local.array(8, float32)
        i = cuda.grid(1)
        line = flat(x)
        first = 8 + i * 5
        shift = shift_of(line, first, width)
        begin = first - shift
        load_words_if(words, 0, line, begin, i < 30, width)
        load_words_if(words, 4, line, begin + width, i % 3 > 0, width)
        cut_into(values, 0, words, 0, shift, width, line)
        for k in range(width):
            out[i, k] = rounded(values[k] * values[0], line)
        out[i, 0] += shift_of(line, first - 20, width) + width * shift_of(line, first + 600, width)  # of no element
        widen_into(values, 0, words, 4, width, line)
        for k in range(width):
            plain[i, k] = values[k]
        bits[i] = load_bits(line, first)

    found = []
    for which in ("auto", "scheduler"):
        x = np.random.default_rng(0).normal(size=8 * 64 + 3).astype(dtype)[3:]  # which begins within a vector
        out, plain = np.zeros((2, 64, width), np.float32)
        bits = np.zeros(64, f"u{np.dtype(dtype).itemsize}")
        said = simulate(cut_out, engine=which, explain=True)[2, 32](x, out, bits, plain)
        found.append((said, out.tobytes(), bits.tobytes(), plain.tobytes()))
    assert found[0][0] == VECTORISED
    assert found[0][1:] == found[1][1:]
    assert out.any()


def test_numba_s_random_numbers_are_drawn_in_all_lanes():
    @cuda.jit
    def drawn(states, out):
        i = cuda.grid(1)
        for turn in range(3):
            out[i, turn] = xoroshiro128p_normal_float32(states, i)

    states = np.zeros(64, xoroshiro128p_dtype)
    states["s0"] = np.random.default_rng(1).integers(1 << 62, size=64)
    (said, first), (_, second) = outcomes(drawn, (2, 32), states, np.zeros((64, 3), np.float32))
    assert said == VECTORISED
    assert first == second


def test_every_function_of_all_lanes_takes_what_its_twin_takes():
    """After the frame. Another number of arguments would leave every launch that calls it to the scheduler."""
    checked = []
    for original, twin, of_launch in rewrite._twins.values():
        if id(twin) in calls.TWINS:
            taken = list(inspect.signature(twin).parameters)[of_launch:]
            inspect.signature(calls.TWINS[id(twin)]).bind("frame", *taken)
            checked.append(original)
    assert {shift_of, widen_into} <= set(checked)
