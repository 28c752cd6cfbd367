"""Nothing is found in kernels that are right, by every way in which CUDA's threads hand data to each other."""

import numpy as np
import pytest
from numba import cuda, float32, float64, int32
from numba.cuda.random import xoroshiro128p_uniform_float32

from normlab.sim import read_vector, sanitize, simulate, write_vector

TILE = 8
FULL = 0xFFFFFFFF


@cuda.jit
def multiply_in_tiles(a, b, out):
    left = cuda.shared.array((TILE, TILE), float32)
    right = cuda.shared.array((TILE, TILE), float32)
    column, row = cuda.grid(2)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for start in range(0, a.shape[1], TILE):
        left[y, x] = a[row, start + x] if row < a.shape[0] and start + x < a.shape[1] else 0
        right[y, x] = b[start + y, column] if start + y < b.shape[0] and column < b.shape[1] else 0
        cuda.syncthreads()
        for k in range(TILE):
            total += left[y, k] * right[k, x]
        cuda.syncthreads()
    if row < out.shape[0] and column < out.shape[1]:
        out[row, column] = total


@cuda.jit(device=True)
def sum_of_block(value, buffer):
    thread = cuda.threadIdx.x
    buffer[thread] = value
    cuda.syncthreads()
    half = cuda.blockDim.x // 2
    while half > 0:
        if thread < half:
            buffer[thread] += buffer[thread + half]
        cuda.syncthreads()
        half //= 2
    return buffer[0]


@cuda.jit
def sum_with_last_block(x, partial, done, out):
    buffer = cuda.shared.array(64, float32)
    last = cuda.shared.array(1, int32)
    i = cuda.grid(1)
    total = sum_of_block(x[i] if i < x.shape[0] else float32(0), buffer)
    if cuda.threadIdx.x == 0:
        partial[cuda.blockIdx.x] = total
        cuda.threadfence()
        last[0] = cuda.atomic.add(done, 0, 1) == cuda.gridDim.x - 1
    cuda.syncthreads()
    if last[0]:
        k = cuda.threadIdx.x
        total = sum_of_block(partial[k] if k < cuda.gridDim.x else float32(0), buffer)
        if k == 0:
            out[0] = total


@cuda.jit
def every_thread_fences_and_one_signals(x, scratch, done, out):
    last = cuda.shared.array(1, int32)
    i = cuda.grid(1)
    scratch[i] = 2 * x[i]
    cuda.threadfence()
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        last[0] = cuda.atomic.add(done, 0, 1) == cuda.gridDim.x - 1
    cuda.syncthreads()
    if last[0]:
        k = cuda.threadIdx.x
        while k < x.shape[0]:
            out[k] = scratch[x.shape[0] - 1 - k]
            k += cuda.blockDim.x


@cuda.jit
def one_thread_fences_for_its_block(x, scratch, done, out):
    last = cuda.shared.array(1, int32)
    i = cuda.grid(1)
    scratch[i] = 2 * x[i]
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        cuda.threadfence()
        last[0] = cuda.atomic.add(done, 0, 1) == cuda.gridDim.x - 1
    cuda.syncthreads()
    if last[0]:
        k = cuda.threadIdx.x
        while k < x.shape[0]:
            out[k] = scratch[x.shape[0] - 1 - k]
            k += cuda.blockDim.x


@cuda.jit
def block_holds_a_lock(x, lock, out):
    thread = cuda.threadIdx.x
    if thread == 0:
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        cuda.threadfence()
    cuda.syncthreads()
    out[thread] += x[cuda.blockIdx.x, thread]
    cuda.threadfence()
    cuda.syncthreads()
    if thread == 0:
        cuda.atomic.exch(lock, 0, 0)


@cuda.jit
def lanes_take_a_lock_in_turn(lock, count):
    done = False
    while not done:
        if cuda.atomic.cas(lock, 0, 0, 1) == 0:
            cuda.threadfence()
            count[0] += 1
            cuda.threadfence()
            cuda.atomic.exch(lock, 0, 0)
            done = True


@cuda.jit
def lock_in_shared_memory(out):
    lock = cuda.shared.array(1, int32)
    count = cuda.shared.array(1, int32)
    if cuda.threadIdx.x == 0:
        lock[0] = 0
        count[0] = 0
    cuda.syncthreads()
    if cuda.threadIdx.x % 32 == 0:
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        count[0] += 1
        cuda.threadfence_block()
        cuda.atomic.exch(lock, 0, 0)
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = count[0]


@cuda.jit
def steps_of_a_grid(x, y):
    i = cuda.grid(1)
    n = x.shape[0]
    grid = cuda.cg.this_grid()
    for _ in range(3):
        y[i] = x[(i + 1) % n] + x[(i + n - 1) % n]
        grid.sync()
        x[i] = y[i] / 2
        grid.sync()


@cuda.jit
def histogram_in_shared_memory(data, bins):
    own = cuda.shared.array(16, int32)
    if cuda.threadIdx.x < 16:
        own[cuda.threadIdx.x] = 0
    cuda.syncthreads()
    i = cuda.grid(1)
    while i < data.shape[0]:
        cuda.atomic.add(own, data[i], 1)
        i += cuda.gridsize(1)
    cuda.syncthreads()
    if cuda.threadIdx.x < 16:
        cuda.atomic.add(bins, cuda.threadIdx.x, own[cuda.threadIdx.x])


@cuda.jit
def scan_in_two_buffers(x, out):
    buffer = cuda.shared.array((2, 64), float32)
    thread = cuda.threadIdx.x
    now = 0
    buffer[0, thread] = x[thread]
    cuda.syncthreads()
    offset = 1
    while offset < 64:
        buffer[1 - now, thread] = buffer[now, thread] + (buffer[now, thread - offset] if thread >= offset else 0)
        now = 1 - now
        cuda.syncthreads()
        offset *= 2
    out[thread] = buffer[now, thread]


@cuda.jit
def one_atomic_per_warp(x, out, count):
    i = cuda.grid(1)
    lane = cuda.laneid
    wanted = x[i] > 0
    votes = cuda.ballot_sync(FULL, wanted)
    first = 0
    if lane == 0:
        first = cuda.atomic.add(count, 0, cuda.popc(votes))
    first = cuda.shfl_sync(FULL, first, 0)
    if wanted:
        out[first + cuda.popc(votes & ((1 << lane) - 1))] = x[i]


@cuda.jit
def laplace(now, then, error):
    buffer = cuda.shared.array(64, float64)
    x, y = cuda.grid(2)
    thread = cuda.threadIdx.x + cuda.threadIdx.y * cuda.blockDim.x
    change = 0.0
    if 0 < x < now.shape[1] - 1 and 0 < y < now.shape[0] - 1:
        then[y, x] = 0.25 * (now[y, x - 1] + now[y, x + 1] + now[y - 1, x] + now[y + 1, x])
        change = abs(then[y, x] - now[y, x])
    buffer[thread] = change
    cuda.syncthreads()
    half = 32
    while half > 0:
        if thread < half:
            buffer[thread] = max(buffer[thread], buffer[thread + half])
        cuda.syncthreads()
        half //= 2
    if thread == 0:
        error[cuda.blockIdx.x, cuda.blockIdx.y] = buffer[0]


@cuda.jit
def estimate_pi(states, out):
    i = cuda.grid(1)
    inside = 0
    for _ in range(4):
        x = xoroshiro128p_uniform_float32(states, i)
        y = xoroshiro128p_uniform_float32(states, i)
        if x * x + y * y <= 1:
            inside += 1
    out[i] = inside


@cuda.jit
def transpose_in_padded_tile(x, out):
    tile = cuda.shared.array((32, 33), float32)
    for row in range(cuda.threadIdx.y, 32, cuda.blockDim.y):
        tile[row, cuda.threadIdx.x] = x[row, cuda.threadIdx.x]
    cuda.syncthreads()
    for row in range(cuda.threadIdx.y, 32, cuda.blockDim.y):
        out[row, cuda.threadIdx.x] = tile[cuda.threadIdx.x, row]


@cuda.jit
def two_dtypes_in_dynamic_memory(x, out):
    wide = cuda.shared.array(0, float64)[:32]
    narrow = cuda.shared.array(0, int32)[64:]
    thread = cuda.threadIdx.x
    narrow[thread] = thread
    wide[thread] = x[thread]
    cuda.syncthreads()
    out[thread] = wide[31 - thread] + narrow[(thread + 1) % 32]


@cuda.jit
def rows_as_views(x, out):
    own = cuda.local.array(4, float32)
    row = x[cuda.threadIdx.x]
    own[:] = row[:4]
    for k in range(4):
        out[cuda.threadIdx.x, k] = own[3 - k]
    rest = out[cuda.threadIdx.x, 4:]
    rest[:] = 0


@cuda.jit
def vectors_of_four(x, out):
    values = read_vector(x, 4 * cuda.threadIdx.x, 4)
    write_vector(out, 4 * cuda.threadIdx.x, values)


@cuda.jit
def signal_within_the_warp(x, out):
    buffer = cuda.shared.array(32, float32)
    lane = cuda.threadIdx.x
    if lane < 16:
        buffer[lane] = x[lane]
        cuda.syncwarp(0xFFFF)
        out[lane] = buffer[15 - lane]
    else:
        buffer[lane] = x[lane]
        cuda.syncwarp(0xFFFF0000)
        out[lane] = buffer[47 - lane]


@cuda.jit
def some_threads_leave_early(x, out):
    i = cuda.grid(1)
    if i >= x.shape[0]:
        return
    cuda.atomic.max(out, 0, x[i])


def rng():
    return np.random.default_rng(0)


def floats(*shape):
    return rng().standard_normal(shape).astype(np.float32)


def empty(*shape, dtype=np.float32):
    return np.full(shape, np.nan if np.dtype(dtype).kind == "f" else 99, dtype)


def ints(*shape):
    return np.zeros(shape, np.int32)


# kernel, configuration, arguments, positions of those that come without contents
CORRECT = [
    (multiply_in_tiles, [(2, 2), (TILE, TILE)], lambda: (floats(13, 11), floats(11, 9), empty(13, 9)), (2,)),
    (sum_with_last_block, [5, 64], lambda: (floats(300), empty(5), ints(1), empty(1)), (1, 3)),
    (every_thread_fences_and_one_signals, [3, 32], lambda: (floats(96), empty(96), ints(1), empty(96)), (1, 3)),
    (one_thread_fences_for_its_block, [3, 64], lambda: (floats(192), empty(192), ints(1), empty(192)), (1, 3)),
    (block_holds_a_lock, [4, 64], lambda: (floats(4, 64), ints(1), np.zeros(64, np.float32)), ()),
    (lanes_take_a_lock_in_turn, [2, 8], lambda: (ints(1), ints(1)), ()),
    (lock_in_shared_memory, [2, 128], lambda: (empty(2, dtype=np.int32),), (0,)),
    (steps_of_a_grid, [3, 32], lambda: (floats(96), empty(96)), (1,)),
    (histogram_in_shared_memory, [2, 64], lambda: (rng().integers(0, 16, 200).astype(np.int32), ints(16)), ()),
    (scan_in_two_buffers, [1, 64], lambda: (floats(64), empty(64)), (1,)),
    (one_atomic_per_warp, [2, 64], lambda: (floats(128), empty(128), ints(1)), (1,)),
    (laplace, [(2, 2), (8, 8)], lambda: (rng().random((12, 14)), np.zeros((12, 14)), np.zeros((2, 2))), (2,)),
    (transpose_in_padded_tile, [1, (32, 4)], lambda: (floats(32, 32), empty(32, 32)), (1,)),
    (two_dtypes_in_dynamic_memory, [1, 32, 0, 384], lambda: (rng().random(32), empty(32, dtype=np.float64)), (1,)),
    (rows_as_views, [1, 6], lambda: (floats(6, 5), empty(6, 7)), (1,)),
    (vectors_of_four, [1, 8], lambda: (floats(32), empty(32)), (1,)),
    (signal_within_the_warp, [1, 32], lambda: (floats(32), empty(32)), (1,)),
    (some_threads_leave_early, [2, 64], lambda: (floats(100), np.zeros(1, np.float32)), ()),
]


@pytest.mark.parametrize("schedule", ["forward", "reverse", 3])
@pytest.mark.parametrize("case", CORRECT, ids=lambda case: case[0].py_func.__name__)
def test_nothing_is_found_in_a_correct_kernel_and_its_results_are_those_of_simulate(case, schedule):
    kernel, configuration, make, uninitialized = case
    arguments, plain = make(), make()
    without_contents = [arguments[position] for position in uninitialized]
    report = sanitize(kernel, without_contents, schedule)[tuple(configuration)](*arguments)
    assert not report.findings, str(report)
    simulate(kernel, schedule)[tuple(configuration)](*plain)
    for got, want in zip(arguments, plain, strict=True):
        np.testing.assert_array_equal(got, want)


def test_nothing_is_found_in_a_monte_carlo_with_random_states():
    states = create_states(64)
    out = empty(64, dtype=np.int32)
    report = sanitize(estimate_pi, [out])[2, 32](states, out)
    assert not report.findings, str(report)
    assert 0 < out.sum() < 4 * 64


def create_states(count):
    states = np.zeros(count, np.dtype([("s0", np.uint64), ("s1", np.uint64)], align=True))
    states["s0"] = rng().integers(1, 2**63, count)
    states["s1"] = rng().integers(1, 2**63, count)
    return states
