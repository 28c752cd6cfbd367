"""Kernels that differ in how they go through global memory, and the launches of them that are counted."""

import numpy as np
from ml_dtypes import bfloat16
from numba import cuda

from normlab.engine import load, load_vector, store, store_vector

from .launches import SECTOR, WARP, Launch, contiguous, counts, touched

BLOCKS, THREADS = 16, 256
SIZE = BLOCKS * THREADS
SIDE, TILE, ROWS = 128, 32, 8  # of the matrix and of a tile; rows of threads that go down a tile


@cuda.jit
def copy(x, y):
    i = cuda.grid(1)
    store(y, i, load(x, i))


@cuda.jit
def copy_guarded(x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = x[i]


@cuda.jit
def copy_strided(x, y, stride):
    i = cuda.grid(1)
    y[i] = x[i * stride]


@cuda.jit
def copy_misaligned(x, y):
    i = cuda.grid(1)
    y[i] = x[i + 1]


@cuda.jit
def copy_vector_4(x, y):
    i = 4 * cuda.grid(1)
    store_vector(y, i, load_vector(x, i, 4))


@cuda.jit
def copy_vector_2(x, y):
    i = 2 * cuda.grid(1)
    store_vector(y, i, load_vector(x, i, 2))


@cuda.jit
def copy_vector_8(x, y):
    i = 8 * cuda.grid(1)
    store_vector(y, i, load_vector(x, i, 8))


@cuda.jit
def gather(x, index, y):
    i = cuda.grid(1)
    y[i] = x[index[i]]


@cuda.jit
def scatter(x, index, y):
    i = cuda.grid(1)
    y[index[i]] = x[i]


@cuda.jit
def histogram(data, bins):
    i = cuda.grid(1)
    cuda.atomic.add(bins, data[i], 1)


@cuda.jit
def broadcast(x, y):
    i = cuda.grid(1)
    y[i] = x[0]


@cuda.jit
def two_branches(x, y, z):
    i = cuda.grid(1)
    if i % 2 == 0:
        y[i] = x[i]
    else:
        z[i // 2] = 2 * x[i // 2]


@cuda.jit
def keep_positive(x, y):
    i = cuda.grid(1)
    while i < x.shape[0]:
        value = x[i]
        if value > 0:
            y[i] = value
        i += cuda.gridsize(1)


@cuda.jit
def square(x, y):
    i = cuda.grid(1)
    y[i] = x[i] * x[i]


@cuda.jit
def transpose_naive(x, y):
    column = cuda.blockIdx.x * TILE + cuda.threadIdx.x
    row = cuda.blockIdx.y * TILE + cuda.threadIdx.y
    for k in range(0, TILE, ROWS):
        y[column, row + k] = x[row + k, column]


def _floats(rng, *shape, dtype=np.float32):
    return rng.normal(size=shape).astype(dtype)


def _pair(size, dtype=np.float32, extra=0):
    """Arguments (x, y) of `size` elements, x of `extra` more."""
    return lambda rng: (_floats(rng, size + extra, dtype=dtype), np.zeros(size, dtype))


def _warps(indices):
    return np.asarray(indices).reshape(-1, WARP)


def _copies():
    for dtype in (np.float32, np.float16, bfloat16, np.float64):
        name = np.dtype(dtype).name
        count = contiguous(SIZE, np.dtype(dtype).itemsize)
        yield Launch(f"copy {name}", copy, BLOCKS, THREADS, _pair(SIZE, dtype), lambda a, c=count: counts(c, c))
    for kernel, dtype, width in (
        (copy_vector_4, np.float32, 4),
        (copy_vector_2, np.float32, 2),
        (copy_vector_2, np.float64, 2),
        (copy_vector_8, np.float16, 8),
        (copy_vector_8, bfloat16, 8),
        (copy_vector_4, np.float16, 4),
        (copy_vector_2, np.float16, 2),
    ):
        size = BLOCKS * THREADS * width
        count = contiguous(size, np.dtype(dtype).itemsize, width)
        name = f"copy {np.dtype(dtype).name} x{width}"
        yield Launch(name, kernel, BLOCKS, THREADS, _pair(size, dtype), lambda a, c=count: counts(c, c))
    for stride in (2, 8, 33):
        # a warp's 32 elements span 32 · stride · 4 bytes, and lie in every sector of them, or each in one of its own
        sectors = SIZE // WARP * min(WARP, WARP * stride * 4 // SECTOR)
        yield Launch(
            f"copy strided by {stride}", copy_strided, BLOCKS, THREADS,
            lambda rng, s=stride: (_floats(rng, SIZE * s), np.zeros(SIZE, np.float32), s),
            lambda a, s=sectors: counts((SIZE // WARP, s), contiguous(SIZE, 4)),
        )  # fmt: skip
    yield Launch(
        "copy misaligned", copy_misaligned, BLOCKS, THREADS, _pair(SIZE, extra=1),
        lambda a: counts((SIZE // WARP, SIZE // WARP * (WARP * 4 // SECTOR + 1)), contiguous(SIZE, 4)),
    )  # fmt: skip
    guarded = SIZE - 75
    yield Launch(
        "copy guarded", copy_guarded, BLOCKS, THREADS, _pair(guarded),
        lambda a: counts(contiguous(guarded, 4), contiguous(guarded, 4)),
    )  # fmt: skip


def _irregular():
    whole = contiguous(SIZE, 4)
    even, odd = np.arange(0, SIZE, 2), np.arange(SIZE // 2)
    yield Launch(
        "gather", gather, BLOCKS, THREADS,
        lambda rng: (_floats(rng, SIZE), rng.permutation(SIZE).astype(np.int32), np.zeros(SIZE, np.float32)),
        lambda a: counts(tuple(np.add(whole, touched(_warps(a[1]), 4))), whole),
    )  # fmt: skip
    yield Launch(
        "scatter", scatter, BLOCKS, THREADS,
        lambda rng: (_floats(rng, SIZE), rng.permutation(SIZE).astype(np.int32), np.zeros(SIZE, np.float32)),
        lambda a: counts(tuple(np.add(whole, whole)), touched(_warps(a[1]), 4)),
    )  # fmt: skip
    yield Launch(
        "histogram", histogram, BLOCKS, THREADS,
        lambda rng: (rng.integers(0, 64, SIZE, np.int32), np.zeros(64, np.int32)),
        lambda a: counts(whole, (0, 0)),
    )  # fmt: skip
    yield Launch(
        "broadcast", broadcast, BLOCKS, THREADS, _pair(SIZE),
        lambda a: counts((SIZE // WARP, SIZE // WARP), whole),
    )  # fmt: skip
    yield Launch(
        "two branches", two_branches, BLOCKS, THREADS,
        lambda rng: (_floats(rng, SIZE), np.zeros(SIZE, np.float32), np.zeros(SIZE, np.float32)),
        # half of the lanes in each branch: every other element of a warp's 128 bytes, or all of 64 bytes
        lambda a: counts(*2 * [tuple(np.add(*(touched(i.reshape(-1, WARP // 2), 4) for i in (even, odd))))]),
    )  # fmt: skip
    yield Launch("keep positive", keep_positive, BLOCKS // 4, THREADS, _pair(SIZE), _kept)
    yield Launch(
        "square", square, BLOCKS, THREADS, _pair(SIZE), lambda a: counts(tuple(np.add(whole, whole)), whole),
        compiler="x[i] is loaded once, not twice.", fewer=counts(ld=whole),
    )  # fmt: skip
    requests, sectors = contiguous(SIDE * SIDE, 4)
    yield Launch(
        "transpose naive", transpose_naive, (SIDE // TILE, SIDE // TILE), (TILE, ROWS),
        lambda rng: (_floats(rng, SIDE, SIDE), np.zeros((SIDE, SIDE), np.float32)),
        lambda a: counts((requests, sectors), (requests, requests * WARP)),
    )  # fmt: skip


def _kept(arguments):
    kept = _warps(arguments[0] > 0)
    sectors = kept.reshape(-1, SECTOR // 4).any(axis=1).sum()
    return counts(contiguous(SIZE, 4), (int(kept.any(axis=1).sum()), int(sectors)))


GLOBAL_LAUNCHES = [*_copies(), *_irregular()]
