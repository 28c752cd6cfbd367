"""Elements read before anybody has written them."""

from numba import cuda, float32

from .collection import SIZE, Planted, floats, zeros

WITH_HALO = SIZE + 2


@cuda.jit
def partial_of_absent_warp(x, out):
    partial = cuda.shared.array(4, float32)
    thread = cuda.threadIdx.x
    if thread % 32 == 0:
        partial[thread // 32] = x[thread]
    cuda.syncthreads()
    if thread == 0:
        total = float32(0)
        for warp in range(4):  # FIX writes: for warp in range(cuda.blockDim.x // 32):
            total += partial[warp]  # BUG uninitialized-read: read
        out[0] = total


@cuda.jit
def halo_never_loaded(x, out):
    tile = cuda.shared.array(WITH_HALO, float32)
    thread = cuda.threadIdx.x
    tile[thread + 1] = x[thread]
    if thread == 0:
        tile[0] = float32(0)
        # FIX adds: tile[SIZE + 1] = float32(0)
    cuda.syncthreads()
    out[thread] = tile[thread] + tile[thread + 2]  # BUG uninitialized-read: read


@cuda.jit
def tail_of_the_tile(x, out):
    buffer = cuda.shared.array(SIZE, float32)
    thread = cuda.threadIdx.x
    if thread < x.shape[0]:
        buffer[thread] = x[thread]
    # FIX adds: else:
    # FIX adds:     buffer[thread] = float32(0)
    half = SIZE // 2
    while half > 0:
        cuda.syncthreads()
        if thread < half:
            buffer[thread] += buffer[thread + half]  # BUG uninitialized-read: read
        half //= 2
    if thread == 0:
        out[0] = buffer[0]


@cuda.jit
def local_array_partly_filled(x, out):
    window = cuda.local.array(4, float32)
    thread = cuda.threadIdx.x
    for k in range(3):  # FIX writes: for k in range(4):
        window[k] = x[thread] + k
    total = float32(0)
    for k in range(4):
        total += window[k]  # BUG uninitialized-read: read
    out[thread] = total


@cuda.jit
def output_added_to(x, out):
    i = cuda.grid(1)
    out[i] += x[i]  # BUG uninitialized-read: read  # FIX writes: out[i] = x[i]


@cuda.jit
def padding_summed(x, out):
    tile = cuda.shared.array((32, 33), float32)
    thread = cuda.threadIdx.x
    for row in range(32):
        tile[row, thread] = x[row, thread]
    cuda.syncwarp()
    total = float32(0)
    for column in range(33):  # FIX writes: for column in range(32):
        total += tile[thread, column]  # BUG uninitialized-read: read
    out[thread] = total


def _vector() -> tuple:
    return floats(SIZE), zeros(SIZE)


PLANTED = [
    Planted("uninitialized-read", partial_of_absent_warp, 1, SIZE,
        lambda: (floats(SIZE), zeros(1)),
        "Two warps leave two partial sums; the other two are whatever shared memory held before.",
    ),
    Planted("uninitialized-read", halo_never_loaded, 1, SIZE, _vector,
        "The last thread adds the right halo cell, which nobody has loaded.",
    ),
    Planted("uninitialized-read", tail_of_the_tile, 1, SIZE,
        lambda: (floats(50), zeros(1)),
        "The guard spares the load beyond the row, not the sum over what was to be loaded.",
    ),
    Planted("uninitialized-read", local_array_partly_filled, 1, 32,
        lambda: (floats(32), zeros(32)),
        "The fourth element is undefined, and the compiler may put anything in its place.",
    ),
    Planted("uninitialized-read", output_added_to, 2, 32,
        lambda: (floats(64), zeros(64)),
        "The sum begins with what the last owner of this memory left there.",
        uninitialized=(1,),
    ),
    Planted("uninitialized-read", padding_summed, 1, 32,
        lambda: (floats(32, 32), zeros(32)),
        "The column that keeps the banks apart holds no data, and is summed all the same.",
    ),
]  # fmt: skip
