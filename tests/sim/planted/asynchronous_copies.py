"""Asynchronous copies into shared memory that are read too early, or overwrite what is still read."""

from numba import cuda, float32

from normlab.engine.device.asynchronous import commit_copies, copy_async, wait_copies

from .collection import SIZE, Planted, floats, zeros

WIDTH = 4  # elements a thread copies at a time: 16 bytes
TILE = WIDTH * SIZE


@cuda.jit
def copy_without_wait(x, out):
    tile = cuda.shared.array(TILE, float32, 16)
    thread = cuda.threadIdx.x
    copy_async(tile, WIDTH * thread, x, WIDTH * thread, WIDTH)  # BUG race: copy
    commit_copies()
    # FIX adds: wait_copies(0)
    out[thread] = tile[WIDTH * thread]  # BUG race: read


@cuda.jit
def copy_without_commit(x, out):
    tile = cuda.shared.array(TILE, float32, 16)
    thread = cuda.threadIdx.x
    copy_async(tile, WIDTH * thread, x, WIDTH * thread, WIDTH)  # BUG race: copy
    # FIX adds: commit_copies()
    wait_copies(0)
    cuda.syncthreads()
    out[thread] = tile[TILE - 1 - thread]  # BUG race: read


@cuda.jit
def copy_waited_for_behind_the_barrier(x, out):
    tile = cuda.shared.array(TILE, float32, 16)
    thread = cuda.threadIdx.x
    copy_async(tile, WIDTH * thread, x, WIDTH * thread, WIDTH)  # BUG race: copy
    commit_copies()
    # FIX adds: wait_copies(0)
    cuda.syncthreads()
    wait_copies(0)  # FIX drops
    out[thread] = tile[TILE - 1 - thread]  # BUG race: read


@cuda.jit
def stage_overwritten_too_early(x, out):
    tile = cuda.shared.array((2, TILE), float32, 16)
    thread = cuda.threadIdx.x
    total = float32(0)
    copy_async(tile, (0, WIDTH * thread), x, (0, WIDTH * thread), WIDTH)
    commit_copies()
    for row in range(x.shape[0]):
        if row + 1 < x.shape[0]:
            copy_async(tile, ((row + 1) % 2, WIDTH * thread), x, (row + 1, WIDTH * thread), WIDTH)  # BUG race: copy
        commit_copies()
        wait_copies(1)
        cuda.syncthreads()
        total += tile[row % 2, TILE - 1 - thread]  # BUG race: read
        # FIX adds: cuda.syncthreads()
    out[thread] = total


@cuda.jit
def last_stage_not_waited_for(x, out):
    tile = cuda.shared.array((2, TILE), float32, 16)
    thread = cuda.threadIdx.x
    total = float32(0)
    copy_async(tile, (0, WIDTH * thread), x, (0, WIDTH * thread), WIDTH)
    commit_copies()
    for row in range(x.shape[0]):
        if row + 1 < x.shape[0]:
            copy_async(tile, ((row + 1) % 2, WIDTH * thread), x, (row + 1, WIDTH * thread), WIDTH)  # BUG race: copy
            commit_copies()  # FIX drops
        # FIX adds: commit_copies()
        wait_copies(1)
        cuda.syncthreads()
        total += tile[row % 2, TILE - 1 - thread]  # BUG race: read
        cuda.syncthreads()
    out[thread] = total


def _tile() -> tuple:
    return floats(TILE), zeros(SIZE)


def _rows() -> tuple:
    return floats(4, TILE), zeros(SIZE)


PLANTED = [
    Planted("race", copy_without_wait, 1, SIZE,
        _tile,
        "The copy has hardly begun when its own thread reads the target.",
    ),
    Planted("race", copy_without_commit, 1, SIZE,
        _tile,
        "The wait is for groups, and the copy is in none: it waits for nothing.",
    ),
    Planted("race", copy_waited_for_behind_the_barrier, 1, SIZE,
        _tile,
        "Each thread waits for its own copy alone, and what it reads is another's.",
    ),
    Planted("race", stage_overwritten_too_early, 1, SIZE,
        _rows,
        "A warp that is ahead copies the row after the next over the stage that the other warp still reads.",
    ),
    Planted("race", last_stage_not_waited_for, 1, SIZE,
        _rows,
        "In the last turn no group is added, so one may stay under way, and it is the row to be read.",
    ),
]  # fmt: skip
