"""What a trace counts of wide vectors, asynchronous copies and shared memory of other blocks."""

import numpy as np
import pytest
from numba import cuda, float32

from normlab.engine.device.asynchronous import commit_copies, copy_async, wait_copies
from normlab.engine.device.clusters import cluster_rank, cluster_sync, load_from_block, store_to_block
from normlab.sim import METRICS, read_vector, trace, write_vector

COPY = {
    "requests": "sm__sass_l1tex_t_requests_pipe_lsu_mem_global_op_ldgsts.sum",
    "sectors": "sm__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts.sum",
    "wavefronts": "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ldgsts.sum",
}


def remote(operation):
    return [f"l1tex__t_{what}_pipe_lsu_mem_dshared_op_{operation}.sum" for what in ("requests", "sectors")]


def loads_and_stores(counted):
    names = [
        f"l1tex__t_{what}_pipe_lsu_mem_global_op_{op}.sum" for op in ("ld", "st") for what in ("requests", "sectors")
    ]
    return [counted.metrics[name] for name in names]


@cuda.jit
def wide(x, y):
    i = 8 * cuda.grid(1)
    write_vector(y, i, read_vector(x, i, 8))


def test_a_vector_of_32_bytes_is_two_requests():
    x, y = np.arange(512, dtype=np.float32), np.zeros(512, np.float32)
    counted = trace(wide)[2, 32](x, y)
    np.testing.assert_array_equal(x, y)
    assert loads_and_stores(counted) == [4, 128, 4, 128]  # 2 warps, twice; every lane half a sector, twice
    assert {request.size for request in counted.requests(wide.py_func.__code__.co_firstlineno + 3)} == {16}


@cuda.jit
def tile_copied(x, stride):
    tile = cuda.shared.array(4 * 32 * 4, float32, 16)
    thread = cuda.threadIdx.x
    copy_async(tile, 4 * thread * stride, x, 4 * thread, 4)
    commit_copies()
    wait_copies(0)


@pytest.mark.parametrize(("stride", "wavefronts"), [(1, 4), (2, 8), (4, 16)])
def test_a_copy_is_a_request_of_global_and_passes_through_shared_memory(stride, wavefronts):
    x = np.zeros(128, np.float32)
    counted = trace(tile_copied)[1, 32](x, stride)
    assert [counted.metrics[name] for name in COPY.values()] == [1, 16, wavefronts]
    assert loads_and_stores(counted) == [1, 16, 0, 0], "a copy is a load, too"
    assert counted.metrics["normlab__bytes_unique_mem_global_op_ld.sum"] == 512
    assert counted.metrics["normlab__bytes_moved_mem_global_op_ld.sum"] == 512
    assert (counted.array("x").counted(stores=False) == 1).all()
    assert counted.array("tile").counted(stores=True).sum() == 128


@cuda.jit
def copied_wide(x):
    tile = cuda.shared.array(256, float32, 16)
    copy_async(tile, 8 * cuda.threadIdx.x, x, 8 * cuda.threadIdx.x, 8)
    commit_copies()
    wait_copies(0)


def test_a_copy_of_32_bytes_is_two_requests():
    counted = trace(copied_wide)[1, 32](np.zeros(256, np.float32))
    assert [counted.metrics[name] for name in COPY.values()] == [2, 64, 16]
    assert (counted.array("tile").counted(stores=True) == 1).all()


def test_both_sides_of_a_copy_can_be_looked_at():
    counted = trace(tile_copied)[1, 32](np.zeros(128, np.float32), 1)
    line = tile_copied.py_func.__code__.co_firstlineno + 4
    source, target = counted.requests(line, "ldgsts")
    assert (source.space, source.array, source.cost) == ("global", "x", 16)
    assert (target.space, target.array, target.cost) == ("shared", "tile", 4)
    assert "global asynchronous copy of 'x'" in str(source)


def test_the_page_has_copies_and_other_blocks_memory(tmp_path):
    page = trace(tile_copied)[1, 32](np.zeros(128, np.float32), 1).save(tmp_path / "copy.html").read_text()
    assert "shared asynchronous copy of" in page
    out = np.zeros((4, 2, 32), np.float32)
    page = trace(to_and_from, cluster=4)[4, 32](out).save(tmp_path / "cluster.html").read_text()
    assert "dshared store of" in page
    assert "clusters of 4" in page


@cuda.jit
def to_and_from(out):
    mine = cuda.shared.array((2, 32), float32)
    thread = cuda.threadIdx.x
    rank = cluster_rank()
    cluster_sync()
    store_to_block(mine, (0, thread), rank, (rank + 1) % 4)
    store_to_block(mine, (1, 4 * (thread // 4) + rank), thread, thread % 4)
    cluster_sync()
    out[rank, 0, thread] = load_from_block(mine, (0, thread), (rank + 1) % 4)
    out[rank, 1, thread] = mine[1, thread]
    cluster_sync()


def test_accesses_to_other_blocks_are_counted_apart_each_block_s_sectors_for_themselves():
    out = np.zeros((4, 2, 32), np.float32)
    counted = trace(to_and_from, cluster=4)[4, 32](out)
    first = to_and_from.py_func.__code__.co_firstlineno
    by_line = {row.line.number - first: row.metrics for row in counted.by_line()}
    assert [by_line[6][name] for name in remote("st")] == [4, 16]
    assert [by_line[7][name] for name in remote("st")] == [4, 64]  # 4 blocks, 4 sectors of each
    assert [by_line[9][name] for name in remote("ld")] == [4, 16]
    assert counted.metrics["normlab__cluster_syncs.sum"] == 3
    assert counted.metrics["l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum"] == 0
    (request,) = counted.requests(first + 6, "st")
    assert (request.space, request.cost) == ("dshared", 4)
    assert max(heat.counted(stores=True).max() for heat in counted.heat if heat.space == "dshared") == 4


@cuda.jit
def from_all(out):
    mine = cuda.shared.array(32, float32)
    mine[cuda.threadIdx.x] = 1
    cluster_sync()
    total = float32(0)
    for rank in range(4):
        total += load_from_block(mine, cuda.threadIdx.x, rank)
    out[cuda.blockIdx.x, cuda.threadIdx.x] = total
    cluster_sync()


def test_a_load_from_the_block_s_own_memory_is_one_of_shared_memory():
    """As the hardware counts: of a cluster of eight, 7/8 of such loads are remote (tests/hardware/counters.py)."""
    out = np.zeros((4, 32), np.float32)
    counted = trace(from_all, cluster=4)[4, 32](out)
    assert (out == 4).all()
    assert [counted.metrics[name] for name in remote("ld")] == [4 * 3, 4 * 3 * 4]
    assert counted.metrics["l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"] == 4


def test_the_new_metrics_say_what_they_are():
    for name in (*COPY.values(), *remote("ld"), *remote("st")):
        assert METRICS[name].meaning.endswith(".")
