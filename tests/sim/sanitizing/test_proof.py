"""Where the vectorised engine proves that there is nothing to find, it runs; and it proves no wrong kernel right.

Each wrong kernel here makes one mistake that no other rule of the proof meets: without its rule it would be proved.
"""

import numpy as np
import pytest
from numba import cuda, float32, int16, int32, int64
from sim.planted.collection import floats

from normlab.engine import cluster_rank, commit_copies, copy_async, wait_copies
from normlab.engine.device.clusters import (
    cluster_arrive,
    cluster_sync,
    cluster_wait,
    load_from_block,
    store_to_block,
)
from normlab.sim import SimulationError, sanitize
from normlab.sim.vectorised import engine

BLOCKS, THREADS = 6, 64
FULL = 0xFFFFFFFF


@pytest.fixture(autouse=True)
def chunks_of_two_blocks(monkeypatch):
    """Let blocks be in several chunks; forget what the engine has learnt."""
    monkeypatch.setattr(engine, "STRICT", True)
    monkeypatch.setattr(engine, "LANES", 2 * THREADS)
    monkeypatch.setattr(engine, "_learnt", {})


@cuda.jit
def tree_sum(x, out):
    buffer = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    buffer[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    s = THREADS // 2
    while s > 0:
        if t < s:
            buffer[t] += buffer[t + s]
        cuda.syncthreads()
        s //= 2
    if t == 0:
        out[cuda.blockIdx.x] = buffer[0]


@cuda.jit
def warp_sums(x, out):
    value = x[cuda.grid(1)]
    offset = 16
    while offset > 0:
        value += cuda.shfl_xor_sync(FULL, value, offset)
        offset //= 2
    if cuda.laneid == 0:
        cuda.atomic.add(out, cuda.blockIdx.x, value)


@cuda.jit
def histogram(x, out):
    own = cuda.local.array(2, float32)
    own[0] = x[cuda.grid(1)]
    own[1] = own[0] + x[-1]  # from the end, as Python means it
    cuda.atomic.add(out, int(own[0]) % out.size, 1)


@cuda.jit
def halves(x, out):
    memory = cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    memory[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    if t < 32:
        out[cuda.blockIdx.x * 32 + t] = memory[t] + memory[t + 32]


@cuda.jit
def copied(x, out):
    buffer = cuda.shared.array(2 * 4 * THREADS, float32, alignment=16)
    t = cuda.threadIdx.x
    for turn in range(4):
        place = 4 * THREADS * (turn % 2)
        if t < 8:
            copy_async(buffer, place + 4 * t, x, 4 * (t + turn), 4)
        commit_copies()
        wait_copies(0)
        cuda.syncthreads()
        if t < 32:
            out[32 * cuda.blockIdx.x + t] += buffer[place + t]


@cuda.jit
def met(x, out):
    i = cuda.grid(1)
    x[i] += 1
    cuda.cg.this_grid().sync()
    if i < out.size:
        out[i] = x[x.size - 1 - i]


@cuda.jit
def exchanged(x, out):
    """Through shared memory, and through global memory: a cluster's barriers order both."""
    buffer = cuda.shared.array(THREADS, float32)
    t, i, other = cuda.threadIdx.x, cuda.grid(1), 1 - cluster_rank()
    buffer[t] = x[i]
    cluster_sync()
    value = load_from_block(buffer, THREADS - 1 - t, other)
    cluster_arrive()
    value += 1
    cluster_wait()
    store_to_block(buffer, t, value, other)
    x[i] = value
    cluster_sync()
    if t < 32:
        out[cuda.blockIdx.x * 32 + t] = buffer[t] + x[(i + THREADS) % (2 * THREADS) + i // (2 * THREADS) * 2 * THREADS]


@pytest.mark.parametrize(
    ("kernel", "cluster"), [(tree_sum, 1), (warp_sums, 1), (halves, 1), (copied, 1), (met, 1), (exchanged, 2)]
)
def test_a_right_kernel_is_proved_and_computes_the_same(kernel, cluster):
    x, out, same = floats(BLOCKS * THREADS), np.zeros(BLOCKS * 32, np.float32), np.zeros(BLOCKS * 32, np.float32)
    configuration = BLOCKS, THREADS, 0, 4 * THREADS
    assert sanitize(kernel, engine="vectorised", cluster=cluster)[configuration](x.copy(), out).ok
    assert sanitize(kernel, engine="scheduler", cluster=cluster)[configuration](x, same).ok
    assert out.tobytes() == same.tobytes()
    assert out.any()


def test_an_array_that_counts_as_never_written_may_be_written_and_read():
    @cuda.jit
    def twice(x, out):
        i = cuda.grid(1)
        out[i] = x[i]
        out[i] += out[i]

    x, out = floats(BLOCKS * THREADS), np.zeros(BLOCKS * THREADS, np.float32)
    assert sanitize(twice, [out], engine="vectorised")[BLOCKS, THREADS](x, out).ok
    assert (out == 2 * x).all()


def test_what_has_no_proof_is_watched_and_found_right():
    x, out = floats(BLOCKS * THREADS), np.zeros(8, np.float32)
    assert sanitize(histogram)[BLOCKS, THREADS](x, out).ok
    assert out.sum() == BLOCKS * THREADS
    with pytest.raises(SimulationError, match=r"the vectorised engine gives up, because .* an index is negative"):
        sanitize(histogram, engine="vectorised")[BLOCKS, THREADS](x, out)
    assert out.sum() == BLOCKS * THREADS, "what the engine had done must be undone"


def test_an_engine_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="engine is one of auto, vectorised, scheduler, not 'gpu'"):
        sanitize(tree_sum, engine="gpu")


# --- kernels with one mistake: (x, out), where out has an element for each thread of the grid, and some more ----------

WRONG, WRONG_IN_CLUSTERS = [], []


def wrong(function):
    """Compile a kernel with a mistake, and keep it for the test."""
    WRONG.append(cuda.jit(function))
    return WRONG[-1]


def wrong_in_clusters(function):
    """Compile a kernel with a mistake for clusters of two blocks, and keep it for the test."""
    WRONG_IN_CLUSTERS.append(cuda.jit(function))
    return WRONG_IN_CLUSTERS[-1]


@wrong
def two_blocks_write_one_element(x, out):
    if cuda.threadIdx.x == 0 and cuda.blockIdx.x % 4 == 0:  # blocks 0 and 4
        out[0] = cuda.blockIdx.x


@wrong
def a_later_block_reads_what_an_earlier_one_writes(x, out):
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x == 0:
            out[0] = x[0]
        elif cuda.blockIdx.x == 5:
            out[5] = out[0]


@wrong
def a_later_block_writes_what_an_earlier_one_reads(x, out):
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x == 0:
            x[5] = out[0]  # no block before the last one writes to `out`
        elif cuda.blockIdx.x == 5:
            out[0] = 3


@wrong
def many_blocks_read_what_a_later_one_writes(x, out):
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x < 5:
            out[cuda.blockIdx.x + 1] = out[0]
        else:
            out[0] = x[0]


@wrong
def a_block_reads_what_another_one_adds_to(x, out):
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x < 2:
            cuda.atomic.add(out, 0, x[0])
        elif cuda.blockIdx.x >= 4:
            out[cuda.blockIdx.x] = out[0]


@wrong
def all_blocks_read_and_add_to_one_element(x, out):
    if cuda.threadIdx.x == 0 and cuda.blockIdx.x % 2 == 0:
        cuda.atomic.add(out, 0, out[0])


@wrong
def a_block_writes_what_another_one_adds_to(x, out):
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x == 0:
            cuda.atomic.add(out, 0, x[0])
        elif cuda.blockIdx.x == 5:
            out[0] = x[0]


@wrong
def all_threads_of_a_block_write_one_number(x, out):
    if cuda.blockIdx.x == 0:
        out[0] = 1


@wrong
def a_thread_reads_shared_memory_that_nobody_has_written(x, out):
    buffer = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    if t > 0:
        buffer[t] = x[t]
    out[cuda.grid(1)] = buffer[t]


@wrong
def a_thread_adds_to_shared_memory_that_nobody_has_written(x, out):
    counts = cuda.shared.array(THREADS, int32)
    cuda.atomic.add(counts, cuda.threadIdx.x, 1)
    out[cuda.grid(1)] = x[0]


@wrong
def a_thread_reads_local_memory_that_it_has_not_written(x, out):
    own = cuda.local.array(2, float32)
    own[0] = x[0]
    out[cuda.grid(1)] = own[cuda.threadIdx.x % 2]


@wrong
def half_of_a_word_has_been_written(x, out):
    parts, words = cuda.shared.array(0, int16), cuda.shared.array(0, int32)
    t = cuda.threadIdx.x
    parts[2 * t] = 1
    out[cuda.grid(1)] = words[t]


@wrong
def an_index_comes_out_negative(x, out):
    out[cuda.grid(1)] = x[cuda.threadIdx.x - 1]


@wrong
def an_index_of_a_store_comes_out_negative(x, out):
    i = cuda.grid(1)
    out[i - 1] = x[i]


@wrong
def an_index_of_a_row_comes_out_negative(x, out):
    rows = cuda.local.array((2, 1), float32)
    rows[0, 0] = rows[1, 0] = x[0]
    row = rows[cuda.threadIdx.x % 2 - 1]
    out[cuda.grid(1)] = row[0]


@wrong
def threads_have_returned_before_a_barrier(x, out):
    t = cuda.threadIdx.x
    if t >= 32:
        return
    out[cuda.grid(1)] = x[t]
    cuda.syncthreads()


@wrong
def a_mask_leaves_its_own_lane_out(x, out):
    out[cuda.grid(1)] = x[0] if cuda.any_sync(0xFFFF, cuda.laneid == 3) else x[1]


@wrong
def a_lane_reads_from_one_that_has_returned(x, out):
    if cuda.laneid >= 16:
        return
    out[cuda.grid(1)] = cuda.shfl_xor_sync(FULL, x[cuda.grid(1)], 16)


@wrong
def threads_have_returned_before_a_grid_sync(x, out):
    if cuda.threadIdx.x == 40:
        return
    out[cuda.grid(1)] = x[0]
    cuda.cg.this_grid().sync()


@wrong
def the_target_of_a_copy_is_read_before_it_arrives(x, out):
    buffer = cuda.shared.array(4 * THREADS, float32, alignment=16)
    t = 4 * cuda.threadIdx.x
    buffer[t] = 0
    copy_async(buffer, t, x, t, 4)
    commit_copies()
    out[cuda.grid(1)] = buffer[t]
    wait_copies(0)


@wrong
def the_target_of_a_copy_is_written_before_it_arrives(x, out):
    buffer = cuda.shared.array(4 * THREADS, float32, alignment=16)
    t = 4 * cuda.threadIdx.x
    copy_async(buffer, t, x, t, 4)
    commit_copies()
    buffer[t + 1] = 0
    wait_copies(0)
    out[cuda.grid(1)] = buffer[t]


@wrong
def two_copies_have_one_target(x, out):
    buffer = cuda.shared.array(4 * THREADS, float32, alignment=16)
    t = 4 * cuda.threadIdx.x
    copy_async(buffer, t, x, t, 4)
    copy_async(buffer, t, x, 0, 4)
    commit_copies()
    wait_copies(0)
    out[cuda.grid(1)] = buffer[t]


@wrong
def what_a_neighbour_copies_is_read_without_a_barrier(x, out):
    buffer = cuda.shared.array(4 * THREADS, float32, alignment=16)
    t = 4 * cuda.threadIdx.x
    copy_async(buffer, t, x, t, 4)
    commit_copies()
    wait_copies(0)
    out[cuda.grid(1)] = buffer[(t + 4) % (4 * THREADS)]


@wrong
def a_copy_begins_before_a_neighbour_has_read_its_target(x, out):
    buffer = cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    buffer[t] = x[t]
    cuda.syncthreads()
    value = buffer[(t + 32) % THREADS]
    if t < THREADS // 4:
        copy_async(buffer, 4 * t, x, 4 * t, 4)
    commit_copies()
    cuda.syncthreads()
    wait_copies(0)
    out[cuda.grid(1)] = value


@wrong_in_clusters
def a_block_may_not_have_begun(x, out):
    buffer = cuda.shared.array(THREADS, float32)
    store_to_block(buffer, cuda.threadIdx.x, x[0], 1 - cluster_rank())
    cluster_sync()
    out[cuda.grid(1)] = buffer[cuda.threadIdx.x]
    cluster_sync()


@wrong_in_clusters
def a_block_may_not_have_begun_when_this_one_has_arrived(x, out):
    buffer = cuda.shared.array(THREADS, float32)
    cluster_arrive()
    store_to_block(buffer, cuda.threadIdx.x, x[0], 1 - cluster_rank())
    cluster_wait()
    cluster_sync()
    out[cuda.grid(1)] = buffer[cuda.threadIdx.x]


@wrong_in_clusters
def a_block_may_have_ended(x, out):
    buffer = cuda.shared.array(THREADS, float32)
    buffer[cuda.threadIdx.x] = x[0]
    cluster_sync()
    out[cuda.grid(1)] = load_from_block(buffer, cuda.threadIdx.x, 1 - cluster_rank())


@wrong_in_clusters
def no_barrier_of_the_cluster_comes_before_the_read(x, out):
    buffer = cuda.shared.array(THREADS, float32)
    buffer[cuda.threadIdx.x] = x[0]
    cluster_sync()
    store_to_block(buffer, cuda.threadIdx.x, x[1], 1 - cluster_rank())
    cuda.syncthreads()
    out[cuda.grid(1)] = buffer[cuda.threadIdx.x]
    cluster_sync()


@wrong_in_clusters
def what_is_read_after_the_arrival_is_written_after_the_wait(x, out):
    buffer = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    buffer[t] = x[0]
    cluster_sync()
    cluster_arrive()
    value = load_from_block(buffer, t, 1 - cluster_rank())
    cluster_wait()
    buffer[t] = value
    cluster_sync()
    out[cuda.grid(1)] = buffer[t]


@wrong_in_clusters
def another_block_s_memory_has_not_been_written(x, out):
    buffer = cuda.shared.array(THREADS, float32)
    if cluster_rank() == 0:
        buffer[cuda.threadIdx.x] = x[0]
    cluster_sync()
    out[cuda.grid(1)] = load_from_block(buffer, cuda.threadIdx.x, 1 - cluster_rank())
    cluster_sync()


@wrong_in_clusters
def two_clusters_write_one_element(x, out):
    if cuda.threadIdx.x == 0 and cuda.blockIdx.x % 5 == 0:
        out[0] = x[cuda.blockIdx.x]


@wrong_in_clusters
def two_blocks_of_a_cluster_write_one_element(x, out):
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x // 2] = cuda.blockIdx.x


@pytest.mark.parametrize(
    ("kernel", "cluster"),
    [(kernel, 1) for kernel in WRONG] + [(kernel, 2) for kernel in WRONG_IN_CLUSTERS],
    ids=lambda value: value if isinstance(value, int) else value.py_func.__name__,
)
def test_a_mistake_is_not_proved_away(kernel, cluster):
    reports = []
    for which in ("auto", "scheduler"):
        x, out = floats(BLOCKS * THREADS), np.zeros(BLOCKS * THREADS, np.float32)
        watched = sanitize(kernel, engine=which, cluster=cluster)
        reports.append(watched[BLOCKS, THREADS, 0, 4 * THREADS](x, out))
    assert reports[0].findings == reports[1].findings
    assert reports[0].findings


def test_locks_in_opposite_orders_are_not_proved_away():
    @cuda.jit
    def both(locks, out):
        if cuda.threadIdx.x == 0 and cuda.blockIdx.x % 5 == 0:  # blocks 0 and 5: one ends before the other begins
            first = cuda.blockIdx.x % 2
            while cuda.atomic.cas(locks, first, 0, 1) != 0:
                pass
            while cuda.atomic.cas(locks, 1 - first, 0, 1) != 0:
                pass
            cuda.threadfence()
            cuda.atomic.add(out, 0, 1)
            cuda.threadfence()
            cuda.atomic.exch(locks, 1 - first, 0)
            cuda.atomic.exch(locks, first, 0)

    report = sanitize(both)[BLOCKS, THREADS](np.zeros(2, np.int32), np.zeros(1, np.int32))
    assert [finding.kind for finding in report.findings] == ["lock-order"]


@pytest.mark.parametrize("everyone", [True, False])
def test_records_are_proved_and_their_races_are_not(everyone):
    @cuda.jit
    def counted(records):
        i = 0 if everyone and cuda.blockIdx.x % 5 == 0 else cuda.grid(1)
        records[i]["count"] = int64(cuda.blockIdx.x)

    records = np.zeros(BLOCKS * THREADS, np.dtype([("count", np.int64), ("mean", np.float32)], align=True))
    if everyone:
        assert not sanitize(counted)[BLOCKS, THREADS](records).ok
    else:
        assert sanitize(counted, engine="vectorised")[BLOCKS, THREADS](records).ok


def test_an_element_that_counts_as_never_written_is_not_read():
    @cuda.jit
    def added(x, out):
        out[cuda.grid(1)] += x[cuda.grid(1)]

    x, out = floats(BLOCKS * THREADS), np.zeros(BLOCKS * THREADS + 1, np.float32)
    for never in (out, out[:100]):
        report = sanitize(added, [never])[BLOCKS, THREADS](x, out)
        assert [finding.kind for finding in report.findings] == ["uninitialized-read"]
    assert sanitize(added, [out[-1:]])[BLOCKS, THREADS](x, out).ok
