"""Kernels that differ in how they go through the banks of shared memory, and the launches of them that are counted.

Most are one and the same kernel, a warp a block, which takes from a table in which lane's place each lane reads (or
writes), in four widths. So the hardware says how it makes wavefronts out of 2-, 4-, 8- and 16-byte accesses. `expected`
has the cases that are easy; it leaves the others to hardware and trace.
"""

from functools import cache

import numpy as np
from numba import cuda, float32, float64
from numba.cuda import types

from normlab.engine import load_vector, store_vector

from .launches import BANKS_BYTES, WARP, Launch, contiguous, counts

BLOCKS = 8
TIMES = 16  # that a warp repeats its access, so that one wavefront more or less in all is no 3 %
PLACES = WARP * (WARP + 1)  # elements of a tile, so that a stride of 33 fits
QUADS = 4 * 512  # elements of a tile that is read 16 bytes at a time
TREE = 256  # threads that sum
SIDE, TILE, ROWS = 128, 32, 8  # of the matrix and of a tile; rows of threads that go down a tile
LANES = np.arange(WARP)


@cache
def build_read(dtype):
    """Each lane reads the element of the tile that `place` says, `TIMES` times; a lane whose place is -1 does not."""

    @cuda.jit
    def shared_read(place, out):
        tile = cuda.shared.array(PLACES, dtype)
        lane = cuda.threadIdx.x
        for row in range(WARP + 1):
            tile[row * WARP + lane] = row
        cuda.syncwarp()
        for k in range(TIMES):
            where = place[k, lane]
            if where >= 0:
                out[k, lane] = tile[where]

    return shared_read


@cache
def build_write(dtype):
    """Each lane writes the element of the tile that `place` says, `TIMES` times, and reads it as often."""

    @cuda.jit
    def shared_write(place, out):
        tile = cuda.shared.array(PLACES, dtype)
        lane = cuda.threadIdx.x
        for k in range(TIMES):
            tile[place[k, lane]] = lane
        cuda.syncwarp()
        for k in range(TIMES):
            out[k, lane] = tile[place[k, lane]]

    return shared_write


@cuda.jit
def shared_read_vector(place, out):
    tile = cuda.shared.array(QUADS, float32, 16)
    lane = cuda.threadIdx.x
    for row in range(QUADS // WARP):
        tile[row * WARP + lane] = row
    cuda.syncwarp()
    for k in range(TIMES):
        where = place[k, lane]
        if where >= 0:
            a, b, c, d = load_vector(tile, 4 * where, 4)
            out[k, lane] = a + b + c + d


@cuda.jit
def shared_write_vector(place, out):
    tile = cuda.shared.array(QUADS, float32, 16)
    lane = cuda.threadIdx.x
    value = float32(lane)
    for k in range(TIMES):
        store_vector(tile, 4 * place[k, lane], (value, value, value, value))
    cuda.syncwarp()
    for k in range(TIMES):
        out[k, lane] = tile[4 * place[k, lane]]


@cache
def build_transpose(dtype, stride):
    """Through a tile whose rows are `stride` elements apart."""

    @cuda.jit
    def transpose_tile(x, y):
        tile = cuda.shared.array((TILE, stride), dtype)
        across, down = cuda.threadIdx.x, cuda.threadIdx.y
        first_column, first_row = cuda.blockIdx.x * TILE, cuda.blockIdx.y * TILE
        for k in range(0, TILE, ROWS):
            tile[down + k, across] = x[first_row + down + k, first_column + across]
        cuda.syncthreads()
        for k in range(0, TILE, ROWS):
            y[first_column + down + k, first_row + across] = tile[across, down + k]

    return transpose_tile


@cuda.jit
def tree_sum_interleaved(x, out):
    buffer = cuda.shared.array(TREE, float32)
    thread = cuda.threadIdx.x
    buffer[thread] = x[cuda.grid(1)]
    cuda.syncthreads()
    step = 1
    while step < TREE:
        index = 2 * step * thread
        if index < TREE:
            buffer[index] += buffer[index + step]
        cuda.syncthreads()
        step *= 2
    if thread == 0:
        out[cuda.blockIdx.x] = buffer[0]


@cuda.jit
def tree_sum_sequential(x, out):
    buffer = cuda.shared.array(TREE, float32)
    thread = cuda.threadIdx.x
    buffer[thread] = x[cuda.grid(1)]
    cuda.syncthreads()
    half = TREE // 2
    while half > 0:
        if thread < half:
            buffer[thread] += buffer[thread + half]
        cuda.syncthreads()
        half //= 2
    if thread == 0:
        out[cuda.blockIdx.x] = buffer[0]


def _tree_wavefronts(spread):
    """Of one block's `buffer[a] += buffer[b]` in all levels: (loads, stores). `spread`: level → words between lanes."""
    wavefronts = 0
    active = TREE // 2
    while active:
        for first in range(0, active, WARP):
            lanes = min(WARP, active - first)
            banks = WARP // np.gcd(WARP, spread(active))  # that the lanes spread over
            wavefronts += -(-lanes // banks)
        active //= 2
    return 2 * wavefronts, wavefronts


def _trees():
    fill = TREE // WARP
    for kernel, spread in ((tree_sum_interleaved, lambda active: TREE // active), (tree_sum_sequential, lambda _: 1)):
        loads, stores = _tree_wavefronts(spread)
        yield Launch(
            kernel.py_func.__name__.replace("_", " "), kernel, BLOCKS, TREE,
            lambda rng: (rng.normal(size=BLOCKS * TREE).astype(np.float32), np.zeros(BLOCKS, np.float32)),
            lambda a, ld=loads, st=stores: counts(
                contiguous(BLOCKS * TREE, 4), (BLOCKS, BLOCKS), BLOCKS * (ld + 1), BLOCKS * (fill + st)
            ),
        )  # fmt: skip


def _transposes():
    requests = SIDE * SIDE // WARP
    for dtype, kind in ((float32, np.float32), (float64, np.float64)):
        size = np.dtype(kind).itemsize
        row = requests * WARP * size // BANKS_BYTES  # wavefronts that a tile's rows take
        whole = contiguous(SIDE * SIDE, size)
        for stride, column in ((TILE, requests * WARP), (TILE + 1, row)):
            yield Launch(
                f"transpose {np.dtype(kind).name} tile {TILE}x{stride}", build_transpose(dtype, stride),
                (SIDE // TILE, SIDE // TILE), (TILE, ROWS),
                lambda rng, k=kind: (rng.normal(size=(SIDE, SIDE)).astype(k), np.zeros((SIDE, SIDE), k)),
                lambda a, w=whole, r=row, c=column: counts(w, w, c, r),
            )  # fmt: skip


ANYWHERE = np.random.default_rng(2).integers(0, 512, WARP)
# name → (the place of each lane's element, wavefronts a request where they are easy to say, by item size)
PLACES_OF = {
    "stride 1": (LANES, {2: 1, 4: 1, 8: 2}),
    "reversed": (LANES[::-1], {2: 1, 4: 1, 8: 2}),
    "stride 2": (2 * LANES, {4: 2}),
    "stride 2 reversed": (2 * LANES[::-1], {4: 2}),
    "stride 4": (4 * LANES, {4: 4}),
    "stride 8": (8 * LANES, {4: 8}),
    "stride 16": (16 * LANES, {4: 16, 8: 32}),
    "stride 32": (32 * LANES, {4: 32, 8: 32}),
    "stride 33": (33 * LANES, {4: 1, 8: 2}),
    "all the same": (0 * LANES, {2: 1, 4: 1}),
    "halves of the warp": (LANES // 16, {4: 1}),
    "same in both halves": (LANES % 16, {4: 1}),
    "quarters of the warp": (LANES // 8, {4: 1}),
    "same in all quarters": (LANES % 8, {4: 1}),
    "pairs": (LANES // 2, {4: 1}),
    "even and odd": (LANES % 2, {4: 1}),
    "two words of each bank": (LANES % 16 + 32 * (LANES // 16), {4: 2}),
    "one lane apart": (np.where(LANES == 31, 32, LANES), {4: 2}),
    "shuffled": (np.random.default_rng(1).permutation(WARP), {4: 1}),
    "anywhere": (ANYWHERE, {}),
    # lanes that share their element with a neighbour: this is where the hardware takes the warp's parts together
    "pairs anywhere": (ANYWHERE[LANES // 2], {}),
    "every second anywhere": (ANYWHERE[LANES // 4 * 2 + LANES % 2], {}),
    "fours anywhere": (ANYWHERE[LANES // 4], {}),
    "every fourth anywhere": (ANYWHERE[LANES // 8 * 4 + LANES % 4], {}),
    "eights anywhere": (ANYWHERE[LANES // 8], {}),
    "pairs, then every second": (np.where(LANES < 16, ANYWHERE[LANES // 2], ANYWHERE[LANES // 4 * 2 + LANES % 2]), {}),
    "pairs, then neighbours": (np.where(LANES < 16, LANES // 2, LANES), {}),
    "neighbours, then pairs": (np.where(LANES < 16, LANES, LANES // 2), {}),
    "pairs in one quarter": (np.where(LANES < 8, LANES // 2, LANES), {}),
    "all pairs but one": (np.where(LANES == 5, 40, LANES // 2), {}),
    "odd pairs": ((LANES + 1) // 2 % 16, {}),
    "even lanes, anywhere": (np.where(LANES % 2, -1, ANYWHERE), {}),
    "even lanes, neighbours": (np.where(LANES % 2, -1, LANES // 2), {}),
    "lower half, anywhere": (np.where(LANES < 16, ANYWHERE, -1), {}),
    "two quarters, neighbours": (np.where(LANES // 8 % 2, -1, LANES // 16 * 8 + LANES % 8), {}),
    "one lane": (np.where(LANES == 9, 3, -1), {}),
    "even lanes, then pairs": (np.where(LANES >= 16, LANES // 2, np.where(LANES % 2, -1, LANES // 2)), {}),
}
WRITTEN_APART = ("stride 1", "stride 2", "stride 32", "stride 33", "two words of each bank")
WRITTEN = (*WRITTEN_APART, "all the same", "pairs", "anywhere")
WIDE = (
    *("stride 1", "reversed", "stride 2", "stride 4", "stride 8", "all the same", "pairs", "even and odd", "shuffled"),
    *("halves of the warp", "same in both halves", "quarters of the warp", "same in all quarters"),
    "two words of each bank",
    *[name for name in PLACES_OF if "anywhere" in name or "pairs" in name or "lane" in name or "quarter" in name],
)


def patterns(blocks=BLOCKS):
    """Launches of so many blocks, which all do the same."""
    requests = blocks * TIMES
    for name, (places, easy) in PLACES_OF.items():
        for dtype, kind in ((types.float16, np.float16), (float32, np.float32), (float64, np.float64)):
            size = np.dtype(kind).itemsize
            row = max(1, WARP * size // BANKS_BYTES)  # wavefronts of 32 neighbours
            wavefronts = requests * easy[size] if size in easy else None
            yield _pattern(
                f"read {8 * size}-bit, {name}", build_read(dtype), places, kind,
                counts(shared_ld=wavefronts, shared_st=blocks * (WARP + 1) * row), blocks,
            )  # fmt: skip
            if name in WRITTEN:
                yield _pattern(
                    f"write {8 * size}-bit, {name}", build_write(dtype), places, kind,
                    counts(shared_ld=wavefronts, shared_st=wavefronts if name in WRITTEN_APART else None), blocks,
                )  # fmt: skip
    for name in dict.fromkeys(WIDE):
        dense = 4 * requests if name in ("stride 1", "reversed") else None  # 512 bytes are four wavefronts
        yield _pattern(
            f"read 128-bit, {name}", shared_read_vector, PLACES_OF[name][0], np.float32,
            counts(shared_ld=dense, shared_st=blocks * QUADS // WARP), blocks,
        )  # fmt: skip
    for name in ("stride 1", "stride 2", "all the same", "pairs", "anywhere", "pairs anywhere"):
        dense = 4 * requests if name == "stride 1" else None
        yield _pattern(
            f"write 128-bit, {name}", shared_write_vector, PLACES_OF[name][0], np.float32,
            counts(shared_ld=dense, shared_st=dense), blocks,
        )  # fmt: skip


def _pattern(name, kernel, places, kind, expected, blocks):
    table = np.tile(places.astype(np.int32), (TIMES, 1))
    return Launch(name, kernel, blocks, WARP, lambda rng: (table, np.zeros((TIMES, WARP), kind)), lambda a: expected)


SHARED_LAUNCHES = [*_trees(), *_transposes(), *patterns()]
