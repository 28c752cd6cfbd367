"""Thread-block clusters: shared memory of another block that is read too early, or is not there."""

from numba import cuda, float32

from normlab.engine.device.clusters import cluster_rank, cluster_sync, load_from_block, store_to_block

from .collection import SIZE, Planted, floats, zeros

BLOCKS = 4  # of a cluster


@cuda.jit
def remote_sums_behind_a_block_barrier(x, out):
    parts = cuda.shared.array(BLOCKS, float32)
    thread = cuda.threadIdx.x
    cluster_sync()
    if thread < BLOCKS:
        store_to_block(parts, cluster_rank(), x[cuda.blockIdx.x], thread)  # BUG race: write
    cuda.syncthreads()  # FIX writes: cluster_sync()
    total = float32(0)
    for rank in range(BLOCKS):
        total += parts[rank]  # BUG race: read
    if thread == 0:
        out[cuda.blockIdx.x] = total
    cluster_sync()


@cuda.jit
def remote_sums_overwritten(x, out):
    parts = cuda.shared.array(BLOCKS, float32)
    thread = cuda.threadIdx.x
    cluster_sync()
    for row in range(x.shape[0]):
        if thread < BLOCKS:
            store_to_block(parts, cluster_rank(), x[row, cuda.blockIdx.x], thread)  # BUG race: write
        cluster_sync()
        if thread == 0:
            total = float32(0)
            for rank in range(BLOCKS):
                total += parts[rank]  # BUG race: read
            out[row, cuda.blockIdx.x] = total
    cluster_sync()  # FIX drops
    # FIX adds:     cluster_sync()


@cuda.jit
def neighbour_has_ended(x, out):
    tile = cuda.shared.array(SIZE, float32)
    thread = cuda.threadIdx.x
    tile[thread] = x[cuda.grid(1)]
    cluster_sync()
    out[cuda.grid(1)] = load_from_block(tile, SIZE - 1 - thread, (cluster_rank() + 1) % BLOCKS)  # BUG race: read
    # FIX adds: cluster_sync()


@cuda.jit
def neighbour_has_not_begun(x, out):
    parts = cuda.shared.array(BLOCKS, float32)
    thread = cuda.threadIdx.x
    # FIX adds: cluster_sync()
    if thread < BLOCKS:
        store_to_block(parts, cluster_rank(), x[cuda.blockIdx.x], thread)  # BUG race: write
    cluster_sync()
    if thread < BLOCKS:
        out[BLOCKS * cuda.blockIdx.x + thread] = parts[thread]


@cuda.jit
def cluster_sync_of_one_warp(x, out):
    parts = cuda.shared.array(BLOCKS, float32)
    thread = cuda.threadIdx.x
    cluster_sync()
    if thread < BLOCKS:
        store_to_block(parts, cluster_rank(), x[cuda.blockIdx.x], thread)
    if thread < 32:  # FIX writes: cluster_sync()
        cluster_sync()  # BUG deadlock: waits for the other warp  # FIX drops
    cuda.syncthreads()  # BUG deadlock: waits for the first warp  # FIX drops
    if thread < BLOCKS:
        out[BLOCKS * cuda.blockIdx.x + thread] = parts[thread]


def _parts() -> tuple:
    return floats(2 * BLOCKS), zeros(2 * BLOCKS * BLOCKS)


PLANTED = [
    Planted("race", remote_sums_behind_a_block_barrier, 2 * BLOCKS, SIZE,
        lambda: (floats(2 * BLOCKS), zeros(2 * BLOCKS)),
        "syncthreads waits for one block; the sums come from the others, which may be late.",
        cluster=BLOCKS,
    ),
    Planted("race", remote_sums_overwritten, BLOCKS, SIZE,
        lambda: (floats(3, BLOCKS), zeros(3, BLOCKS)),
        "A block that is ahead stores the next row's sum into one that still adds up this row's.",
        cluster=BLOCKS,
    ),
    Planted("race", neighbour_has_ended, BLOCKS, SIZE,
        lambda: (floats(BLOCKS * SIZE), zeros(BLOCKS * SIZE)),
        "The neighbour may have ended, and its shared memory belong to another block by now.",
        cluster=BLOCKS,
    ),
    Planted("race", neighbour_has_not_begun, 2 * BLOCKS, SIZE,
        _parts,
        "The blocks of a cluster are placed together but need not begin at the same moment.",
        cluster=BLOCKS,
    ),
    Planted("deadlock", cluster_sync_of_one_warp, BLOCKS, SIZE,
        _parts,
        "One warp waits for the whole cluster, the other one for the first warp.",
        hangs=True,
        cluster=BLOCKS,
    ),
]  # fmt: skip
