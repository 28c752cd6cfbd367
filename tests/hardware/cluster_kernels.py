"""Asynchronous copies into shared memory, its vector loads, and stores and loads in other blocks of a cluster.

What Nsight Compute counts for them, and under which names, no record has yet: `trace` has its assumptions, and these
launches are to show whether they hold (`Launch.unverified`).
"""

from functools import cache

import numpy as np
from numba import cuda, float32

from normlab.engine import (
    cluster_rank,
    cluster_sync,
    commit_copies,
    copy_async,
    load_bits_into,
    load_from_block,
    load_vector_into,
    store_to_block,
    uint16,
    wait_copies,
)

from .launches import (
    COPY_REQUESTS,
    COPY_SECTORS,
    COPY_WAVEFRONTS,
    REMOTE_REQUESTS,
    REMOTE_SECTORS,
    WARP,
    Launch,
    counts,
)

BLOCKS = 8
TIMES = 16  # that a warp repeats its access, so that one wavefront more or less in all is no 3 %
SIZE = 4096  # elements of a tile
CLUSTER = 4
LANES = np.arange(WARP, dtype=np.int32)


@cache
def build_copied(width):
    """Each lane copies `width` neighbours to where `place` says in the tile, and reads one of them."""

    @cuda.jit
    def copied(x, place, out):
        tile = cuda.shared.array(SIZE, float32, 16)
        lane = cuda.threadIdx.x
        for k in range(TIMES):
            copy_async(tile, place[k, lane], x, (k, width * lane), width)
            commit_copies()
            wait_copies(0)
            out[k, lane] = tile[place[k, lane]]

    return copied


@cuda.jit
def read_vectors(place, out):
    """Each lane reads four neighbours from where `place` says in the tile."""
    tile = cuda.shared.array(SIZE, float32, 16)
    values = cuda.local.array(4, float32)
    lane = cuda.threadIdx.x
    for row in range(SIZE // WARP):
        tile[row * WARP + lane] = row
    cuda.syncwarp()
    for k in range(TIMES):
        load_vector_into(values, 0, tile, place[k, lane], 4)
        out[k, lane] = values[0] + values[1] + values[2] + values[3]


@cuda.jit
def read_bits(like, place, out):
    """Each lane reads eight neighbours of 16 bits from where `place` says in the tile."""
    tile = cuda.shared.array(SIZE, uint16, 16)
    values = cuda.local.array(8, float32)
    lane = cuda.threadIdx.x
    for row in range(SIZE // WARP):
        tile[row * WARP + lane] = row
    cuda.syncwarp()
    for k in range(TIMES):
        load_bits_into(values, 0, tile, place[k, lane], 8, like)
        total = values[0]
        for j in range(1, 8):
            total += values[j]
        out[k, lane] = total


@cuda.jit
def remote_one_block(x, out):
    """All lanes of a warp write to one other block of the cluster, and read from it."""
    mine = cuda.shared.array((TIMES, WARP), float32)
    lane = cuda.threadIdx.x
    other = (cluster_rank() + 1) % CLUSTER
    cluster_sync()  # all blocks have begun
    for k in range(TIMES):
        store_to_block(mine, (k, lane), x[k, lane], other)
    cluster_sync()  # all values have come
    for k in range(TIMES):
        out[cuda.blockIdx.x, k, lane] = load_from_block(mine, (k, lane), other)
    cluster_sync()  # no block ends while others read from it


@cuda.jit
def remote_all_blocks(x, out):
    """Lane k of a warp writes to block k modulo 4 of the cluster."""
    mine = cuda.shared.array((TIMES, WARP), float32)
    lane = cuda.threadIdx.x
    rank = cluster_rank()
    cluster_sync()  # all blocks have begun
    for k in range(TIMES):
        store_to_block(mine, (k, CLUSTER * (lane // CLUSTER) + rank), x[k, lane], lane % CLUSTER)
    cluster_sync()  # all values have come
    for k in range(TIMES):
        out[cuda.blockIdx.x, k, lane] = mine[k, lane]


def _zeros(*shape):
    return np.zeros(shape, np.float32)


def _table(places):
    return np.tile(places.astype(np.int32), (TIMES, 1))


def _copies():
    requests = BLOCKS * TIMES
    # from 32 neighbours' worth of an aligned row: 4 sectors a lane's element, 16 of four
    for width, name, places, wavefronts in (
        (4, "side by side", 4 * LANES, 4),
        (4, "every other place", 8 * LANES, None),
        (4, "one group of banks", 32 * LANES, None),
        (2, "side by side", 2 * LANES, 2),
        (1, "side by side", LANES, 1),
        (1, "stride 2", 2 * LANES, 2),
        (1, "one bank", 32 * LANES, 32),
    ):
        expected = {COPY_REQUESTS: requests, COPY_SECTORS: 4 * width * requests}
        if wavefronts is not None:
            expected[COPY_WAVEFRONTS] = wavefronts * requests
        yield Launch(
            f"copied {32 * width}-bit, {name}", build_copied(width), BLOCKS, WARP,
            lambda rng, p=places: (rng.normal(size=(TIMES, 128)).astype(np.float32), _table(p), _zeros(TIMES, WARP)),
            lambda a, e=expected: e, unverified=True,
        )  # fmt: skip


def _vectors():
    for name, places, wavefronts in (
        ("neighbours", LANES, 4),
        ("every second", 2 * LANES, 8),
        ("the same", 0 * LANES, 2),
    ):
        expected = counts(shared_ld=wavefronts * BLOCKS * TIMES)  # a wavefront has half a warp, at most
        yield Launch(
            f"into registers 128-bit, {name}", read_vectors, BLOCKS, WARP,
            lambda rng, p=places: (_table(4 * p), _zeros(TIMES, WARP)), lambda a, e=expected: e, unverified=True,
        )  # fmt: skip
        yield Launch(
            f"into registers 8 x 16-bit, {name}", read_bits, BLOCKS, WARP,
            lambda rng, p=places: (np.zeros(8, np.float16), _table(8 * p), _zeros(TIMES, WARP)),
            lambda a, e=expected: e, unverified=True,
        )  # fmt: skip


def _remote():
    requests = BLOCKS * TIMES
    for name, kernel, read in (("one other block", remote_one_block, True), ("all blocks", remote_all_blocks, False)):
        # 128 bytes side by side in one block; or eight elements in each of four, every fourth of 128 bytes
        sectors = 4 * requests if read else CLUSTER * 4 * requests
        expected = {REMOTE_REQUESTS["st"]: requests, REMOTE_SECTORS["st"]: sectors}
        if read:
            expected |= {REMOTE_REQUESTS["ld"]: requests, REMOTE_SECTORS["ld"]: sectors}
        yield Launch(
            f"remote, {name}", kernel, BLOCKS, WARP,
            lambda rng: (rng.normal(size=(TIMES, WARP)).astype(np.float32), _zeros(BLOCKS, TIMES, WARP)),
            lambda a, e=expected: e, cluster=CLUSTER, unverified=True,
        )  # fmt: skip


CLUSTER_LAUNCHES = [*_copies(), *_vectors(), *_remote()]
