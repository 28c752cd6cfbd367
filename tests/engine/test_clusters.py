"""Thread-block clusters: the PTX, what does not compile, and the same results on a GPU as in the simulator."""

import needs
import numpy as np
import pytest
from numba import cuda, float32, float64
from numba.core import errors

from normlab.engine import compile_ptx, gpu_available, launch, resources, use_gpu
from normlab.engine.compile.compiler import TypingError
from normlab.engine.device.clusters import (
    cluster_arrive,
    cluster_arrive_shared,
    cluster_rank,
    cluster_sync,
    cluster_wait,
    load_from_block,
    store_to_block,
)

REFUSED = TypingError, errors.TypingError  # raised while code is made, and while calls are typed


def too_old():
    return use_gpu() and cuda.get_current_device().compute_capability < (9, 0)


fits_machine = pytest.mark.skipif(too_old(), reason="clusters need compute capability 9.0")


@cuda.jit
def row_sums(x, out):
    """Each cluster sums a row of x, its blocks a part each; every block stores the sum."""
    parts = cuda.shared.array(16, float32)
    thread = cuda.threadIdx.x
    size = out.shape[1]
    cluster_sync()
    rank = cluster_rank()
    row, width = cuda.blockIdx.x // size, x.shape[1] // size
    total = float32(0)
    if thread < size:
        for k in range(width):
            total += x[row, rank * width + k]
        store_to_block(parts, rank, total, thread)
    cluster_sync()
    if thread == 0:
        total = float32(0)
        for k in range(size):
            total += parts[k]
        out[row, rank] = total


@fits_machine
@pytest.mark.parametrize("cluster", [1, 2, 4, 8])
def test_sums_of_rows_over_a_cluster(cluster):
    x, out = np.random.default_rng(0).integers(0, 99, (3, 64)).astype(np.float32), np.zeros((3, cluster), np.float32)
    launch(row_sums, 3 * cluster, 32, x, out, cluster=cluster)
    np.testing.assert_array_equal(out, np.repeat(x.sum(1, keepdims=True), cluster, axis=1))


@cuda.jit
def from_the_neighbour(x, out):
    tile = cuda.shared.array((2, 32), float64)
    thread = cuda.threadIdx.x
    tile[1, thread] = x[cuda.blockIdx.x, thread]
    cluster_sync()
    out[cuda.blockIdx.x, thread] = load_from_block(tile, (1, 31 - thread), cluster_rank() ^ 1)
    cluster_sync()


@fits_machine
def test_a_neighbour_s_elements_are_read():
    x, out = np.random.default_rng(0).normal(size=(4, 32)), np.zeros((4, 32))
    launch(from_the_neighbour, 4, 32, x, out, cluster=2)
    np.testing.assert_array_equal(out, x[[1, 0, 3, 2], ::-1])


@cuda.jit
def fetched_behind_the_barrier(x, out):
    """Every block leaves its element in its own shared memory; its neighbour fetches it."""
    parts = cuda.shared.array(1, float32)
    thread = cuda.threadIdx.x
    if thread == 0:
        parts[0] = x[cuda.blockIdx.x, 0]
    out[cuda.blockIdx.x, thread] = 0.0  # for which nobody waits
    cluster_arrive_shared()
    cluster_wait()
    out[cuda.blockIdx.x, thread] = load_from_block(parts, 0, cluster_rank() ^ 1)
    cluster_sync()


@fits_machine
def test_an_arrival_orders_what_lies_in_the_block_s_own_memory():
    x, out = np.random.default_rng(0).normal(size=(64, 96)).astype(np.float32), np.zeros((64, 96), np.float32)
    launch(fetched_behind_the_barrier, 64, 96, x, out, cluster=2)
    np.testing.assert_array_equal(out, np.repeat(x[np.arange(64) ^ 1, :1], 96, axis=1))


@needs.compiler
def test_an_arrival_with_the_own_memory_alone_waits_for_no_other():
    ptx = compile_ptx(fetched_behind_the_barrier, ((np.float32, 2), (np.float32, 2)))
    fence = "fence.release.sync_restrict::shared::cta.cluster; barrier.cluster.arrive.relaxed.aligned;"
    assert ptx.count(fence) == 1
    assert ptx.count("barrier.cluster.arrive.release") == 1  # the last one


@cuda.jit
def in_halves(x, out):
    """Every block tells its neighbour its element, and loads that while the blocks gather."""
    parts = cuda.shared.array(2, float32)
    thread = cuda.threadIdx.x
    cluster_arrive()
    value = x[cuda.blockIdx.x, thread]
    cluster_wait()
    if thread == 0:
        store_to_block(parts, 0, value, cluster_rank() ^ 1)
    cluster_arrive()
    cluster_wait()
    out[cuda.blockIdx.x, thread] = parts[0]


@fits_machine
def test_the_barrier_in_two_halves():
    x, out = np.random.default_rng(0).normal(size=(64, 96)).astype(np.float32), np.zeros((64, 96), np.float32)
    launch(in_halves, 64, 96, x, out, cluster=2)
    partner = np.arange(64) ^ 1
    np.testing.assert_array_equal(out, np.repeat(x[partner, :1], 96, axis=1))


@needs.compiler
def test_a_load_may_stand_between_the_halves():
    ptx = compile_ptx(in_halves, ((np.float32, 2), (np.float32, 2)))
    kinds = "barrier.cluster.arrive.release", "barrier.cluster.wait.acquire", "ld.global", "st.shared::cluster"
    found = [next(kind for kind in kinds if kind in line) for line in ptx.splitlines() if any(k in line for k in kinds)]
    arrive, wait, load, store = kinds
    assert found == [arrive, load, wait, store, arrive, wait]


@needs.compiler
@pytest.mark.parametrize("kernel", [row_sums, in_halves, fetched_behind_the_barrier], ids=lambda one: one.__name__)
def test_the_assembler_takes_the_ptx_without_spills(kernel):
    taken = resources(kernel, ((np.float32, 2), (np.float32, 2)))
    assert (taken.local_bytes, taken.spill_stores) == (0, 0)


@needs.compiler
@pytest.mark.parametrize(("kernel", "dtype"), [(row_sums, np.float32), (from_the_neighbour, np.float64)])
def test_the_ptx_has_the_cluster_s_instructions_in_order(kernel, dtype):
    ptx = compile_ptx(kernel, ((dtype, 2), (dtype, 2)))
    sync = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
    kinds = sync, "mapa.shared::cluster.u32", "st.shared::cluster.b32", "ld.shared::cluster.b64"
    found = [next(kind for kind in kinds if kind in line) for line in ptx.splitlines() if any(k in line for k in kinds)]
    _, mapped, store, load = kinds
    assert found == ([sync, mapped, store, sync] if kernel is row_sums else [sync, mapped, load, sync])
    assert "%cluster_ctarank" in ptx
    assert ".local" not in ptx


@needs.compiler
def test_an_older_gpu_is_refused_when_it_is_compiled_for_and_a_newer_one_still_goes():
    types = (np.float32, 2), (np.float32, 2)
    with pytest.raises(REFUSED, match=r"needs compute capability 9.0 or later, but the kernel is compiled for 8.0"):
        compile_ptx(row_sums, types, (8, 0))
    assert "mapa" in compile_ptx(row_sums, types, (9, 0))


@cuda.jit
def halves(x, out):
    tile = cuda.shared.array(32, np.float16)
    store_to_block(tile, 0, x[0, 0], 0)


@cuda.jit
def pairs(x, out):
    tile = cuda.shared.array(32, np.complex64)
    out[0, 0] = load_from_block(tile, 0, 0)


@needs.compiler
@pytest.mark.parametrize(
    ("kernel", "dtype", "text"),
    [(halves, np.float16, "store_to_block .* float16"), (pairs, np.complex64, "load_from_block .* complex64")],
)
def test_elements_other_than_numbers_of_32_or_64_bits_are_refused(kernel, dtype, text):
    with pytest.raises(
        REFUSED, match=text.replace(".*", "moves ints and floats of 32 or 64 bits, but got an array of")
    ):
        compile_ptx(kernel, ((dtype, 2), (dtype, 2)))


@pytest.mark.skipif(not gpu_available() or too_old(), reason="needs a GPU with clusters")
def test_many_clusters_at_once_on_a_gpu():
    x, out = np.random.default_rng(1).integers(0, 99, (997, 4096)).astype(np.float32), np.zeros((997, 8), np.float32)
    launch(row_sums, 8 * 997, 256, x, out, cluster=8)
    np.testing.assert_array_equal(out, np.repeat(x.sum(1, keepdims=True), 8, axis=1))
