"""The vectorised engine makes the scheduler's trace: counters, requests with lanes and addresses, heat and flows."""

import numpy as np
import pytest
from numba import cuda, float32, int32
from sim.vectorised.engines import VECTORISED, compared
from sim.vectorised.kernels_at_random import differ
from sim.vectorised.speed import cases
from sim.vectorised.test_clusters import OUT, RUN, X

from normlab.engine import cluster_arrive, cluster_wait, load_vector, store_vector
from normlab.sim import simulate, trace
from normlab.sim.tracing import lanes

CASES = {name: case for name, case in cases(0.05).items() if name != "product"}  # the scheduler's takes 10 s


@pytest.mark.parametrize("name", CASES)
def test_both_engines_trace_the_kernels_of_the_speed_table_alike(name):
    kernel, configuration, arguments = CASES[name]
    assert compared(kernel, configuration, *arguments) == VECTORISED


@pytest.mark.parametrize("first", range(0, 24, 12))
def test_both_engines_trace_kernels_at_random_alike(first):
    said = []
    for seed in range(first, first + 12):
        found, who = differ(seed, traces=True)
        assert found is None, f"seed {seed}: {found[0]}"
        said.append(who)
    assert said.count(VECTORISED) > 8


@pytest.mark.parametrize(("kernel", "block", "cluster"), RUN, ids=lambda one: getattr(one, "__name__", None))
def test_both_engines_trace_clusters_and_teams_alike(kernel, block, cluster):
    assert compared(kernel, (512 // block, block, 0, 256), X, OUT, cluster=cluster) == VECTORISED


def test_both_engines_trace_kernels_at_random_with_clusters_and_teams_alike():
    said = []
    for seed in range(0, 24, 2):  # the others have records
        found, who = differ(seed, traces=True, clusters=True)
        assert found is None, f"seed {seed}: {found[0]}"
        said.append(who)
    assert said.count(VECTORISED) > 6


def test_a_cluster_whose_threads_may_give_way_is_the_scheduler_s():
    @cuda.jit
    def kernel(counts):
        cluster_arrive()
        for _ in range(70):
            cuda.atomic.max(counts, cuda.grid(1) % 4, 0)
        cluster_wait()

    assert "take turns" in compared(kernel, (4, 64), np.zeros(4, np.int32), cluster=2)


@pytest.mark.parametrize("clusters", [False, True])
def test_what_is_counted_in_parts_is_traced_alike(monkeypatch, clusters):
    """Of the accesses that are counted first, some come later in the order of the scheduler than others after them."""
    monkeypatch.setattr(lanes, "LONG", 1024)
    said = []
    for seed in range(0, 12, 2):
        found, who = differ(seed, traces=True, clusters=clusters)
        assert found is None, f"seed {seed}: {found[0]}"
        said.append(who)
    assert said.count(VECTORISED) > 3


def test_flows_that_are_counted_in_parts_are_in_the_order_of_the_scheduler(monkeypatch):
    @cuda.jit
    def kernel(x, y):
        shared = cuda.shared.array(64, float32)
        t, i = cuda.threadIdx.x, cuda.grid(1)
        shared[t] = x[i]
        cuda.syncthreads()
        for k in range(8):
            y[i] += shared[(t + k) % 64]

    monkeypatch.setattr(lanes, "LONG", 1024)
    assert compared(kernel, (4, 64), X, OUT) == VECTORISED


@cuda.jit(device=True)
def numbered(t):
    numbers = cuda.shared.array(0, int32)
    numbers[t] = t


@cuda.jit
def arrays_that_the_second_warp_makes_in_another_order(x, y):
    t = cuda.threadIdx.x
    if t >= 32:
        numbered(t)
    floats = cuda.shared.array(0, float32)
    if t < 32:
        numbered(t)
    floats[t] = x[t]


@cuda.jit(device=True)
def get(x, i):
    return x[i]


@cuda.jit
def one_function_called_at_two_places(x, y):
    i = cuda.grid(1)
    y[i] = get(x, i) + get(x, i)


@cuda.jit
def a_loop_whose_turns_differ(x, y):
    i = cuda.grid(1)
    while y[i] < i % 5:
        y[i] += x[i] * 0 + 1
        if i % 3 == 2:
            break


@cuda.jit
def halves_of_a_warp_a_round_apart(x, y):
    i = cuda.grid(1)
    if i % 32 < 16:
        x[i] = cuda.shfl_xor_sync(0xFFFF, x[i], 1)
    y[i] = x[i]
    y[i] += cuda.shfl_down_sync(0xFFFFFFFF, x[i], 3)


@cuda.jit
def halves_of_a_warp_that_are_answered_together(x, y):
    i = cuda.grid(1)
    if i % 32 >= 16:
        x[i] = cuda.shfl_xor_sync(0xFFFF0000, x[i], 1)
    y[i] = x[i]
    if i % 32 < 16:
        x[i] = cuda.shfl_xor_sync(0xFFFF, x[i], 1)


@cuda.jit
def blocks_of_which_some_meet(x, y):
    i = cuda.grid(1)
    y[i] = x[i]
    if cuda.blockIdx.x % 2:
        cuda.syncthreads()
    y[i] = x[i] + 1


@cuda.jit
def another_block_comes_first_because_of_a_grid_sync(x, y):
    i = cuda.grid(1)
    if cuda.blockIdx.x == 1:
        y[i] = 1
    cuda.cg.this_grid().sync()
    if cuda.blockIdx.x == 0:
        y[i] = x[i]


@cuda.jit
def values_of_several_types(x, y):
    i = cuda.grid(1)
    value = 0.5
    if i % 3:
        value = x[i]
    y[i] = value
    for _ in range(2):
        y[i] += value


@cuda.jit
def arrays_of_two_kinds(x, y):
    i, t = cuda.grid(1), cuda.threadIdx.x
    first = cuda.shared.array(64, float32)
    dynamic = cuda.shared.array(0, int32)
    tile = cuda.shared.array((8, 9), float32)
    first[t], dynamic[t] = x[i], t
    cuda.syncthreads()
    tile[t % 8, t // 8] = first[63 - t] + dynamic[t ^ 1]
    cuda.syncthreads()
    y[i] = tile[t // 8, t % 8]
    cuda.atomic.add(first, t % 4, y[i])


@cuda.jit
def a_call_over_several_lines(x, y):
    i = cuda.grid(1)
    # fmt: off
    (cuda
        .atomic
        .add(y, i % 7,
             x[i]))
    # fmt: on


@cuda.jit
def views(x, y):
    i = cuda.grid(1)
    odd, back = x[1::2], y[::-1]
    back[i] = odd[i % 128]


@cuda.jit
def chained(x, y):
    i = cuda.grid(1)
    if -1 < x[i] < y[i] + 0.5 <= 9:
        y[i] = 1


@cuda.jit
def vectors(x, y):
    i = cuda.grid(1)
    store_vector(y, 4 * i, load_vector(x, 4 * i, 4))


@cuda.jit
def barriers_in_a_loop(x, y):
    shared = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    for turn in range(3):
        shared[t] = x[cuda.grid(1)]
        cuda.syncthreads()
        y[cuda.grid(1)] += shared[(t + 40 * turn) % 64]
        cuda.syncthreads()


KERNELS = (
    barriers_in_a_loop,
    a_loop_whose_turns_differ,
    halves_of_a_warp_a_round_apart,
    halves_of_a_warp_that_are_answered_together,
    blocks_of_which_some_meet,
    another_block_comes_first_because_of_a_grid_sync,
    values_of_several_types,
    arrays_of_two_kinds,
    arrays_that_the_second_warp_makes_in_another_order,
    a_call_over_several_lines,
    views,
    chained,
)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.py_func.__name__)
def test_both_engines_trace_a_kernel_alike(kernel):
    x = np.random.default_rng(0).normal(size=256).astype(np.float32)
    assert compared(kernel, (4, 64, 0, 256), x, np.zeros(256, np.float32)) == VECTORISED


def test_a_function_called_at_two_places_has_the_sites_of_both():
    x = np.ones(256, np.float32)
    keep = get.py_func.__code__.co_firstlineno + 2
    arguments = x, np.zeros_like(x)
    assert compared(one_function_called_at_two_places, (4, 64), *arguments, keep=keep) == VECTORISED


def test_vector_accesses_are_requests_of_their_width():
    x = np.arange(1024, dtype=np.float32)
    assert compared(vectors, (4, 64), x, np.zeros_like(x)) == VECTORISED


def test_an_update_loads_its_element_before_it_computes_the_value():
    @cuda.jit
    def kernel(x, counts):
        i = cuda.grid(1)
        counts[i] ^= cuda.atomic.add(counts, i, 5)
        x[i] /= x[(i + 32) % 64] + 1

    counts, x = np.arange(64), np.arange(64.0)
    for which in ("scheduler", "auto"):
        numbers = counts.copy()
        simulate(kernel, engine=which)[1, 64](x.copy(), numbers)
        assert not numbers.any()  # each is its old value, xor the old value again

    @cuda.jit
    def loads(x, y, out):
        i = cuda.grid(1)
        out[i] %= x[i]
        out[i] //= y[i] * x[i]

    assert compared(loads, (1, 64), X, X + 1, OUT) == VECTORISED


def test_two_names_of_one_array_are_two_arrays_of_a_trace():
    @cuda.jit
    def kernel(x, again, out):
        i = cuda.grid(1)
        out[i] = x[i] + again[i]

    x, out = np.ones(64, np.float32), np.zeros(64, np.float32)
    for which in ("vectorised", "scheduler"):
        counted = trace(kernel, engine=which)[2, 32](x, x, out)
        assert [heat.name for heat in counted.heat] == ["x", "again", "out"]
        assert counted.array("again").counted(stores=False).sum() == 64
        assert counted.counts.unique.ld == 256


def test_a_launch_that_the_engine_gives_up_is_traced_once():
    @cuda.jit
    def kernel(x):
        i = cuda.grid(1)
        x[i] += 1
        cuda.syncthreads()
        x[0] = i

    counted = trace(kernel)[2, 32](np.zeros(64, np.float32))
    assert counted.array("x").counted(stores=True).sum() == 128
    assert counted.metrics["normlab__barriers.sum"] == 2


def test_a_recording_of_statements_is_the_schedulers():
    x = np.ones(64, np.float32)
    counted = trace(blocks_of_which_some_meet, play=0)[2, 32](x, np.zeros_like(x))
    assert counted.play is not None
    with pytest.raises(ValueError, match="play records thread by thread, which takes the scheduler"):
        trace(blocks_of_which_some_meet, play=0, engine="vectorised")


def test_an_engine_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="engine is one of auto, vectorised, scheduler, not 'fast'"):
        trace(views, engine="fast")


def test_an_array_has_the_name_that_its_call_is_assigned_to():
    # fmt: off
    @cuda.jit
    def kernel(x, y):
        first = cuda.shared.array(64, float32); second = cuda.shared.array(64, float32)  # noqa: E702
        third, fourth = cuda.shared.array(64, float32), cuda.shared.array(64, int32)
        fifth = (
            cuda.shared
            .array(64, float32)
        )
        t, i = cuda.threadIdx.x, cuda.grid(1)
        for array in (first, second, third, fifth):
            array[t] = x[i]
        fourth[t] = i
        y[i] = first[t] + second[t] + third[t] + fourth[t] + fifth[t]
    # fmt: on

    assert compared(kernel, (1, 64), X, OUT) == VECTORISED
    for engine in ("vectorised", "scheduler"):
        shared = [one.name for one in trace(kernel, engine=engine)[1, 64](X, OUT).heat if one.space == "shared"]
        assert sorted(shared) == ["fifth", "first", "fourth", "second", "third"]
