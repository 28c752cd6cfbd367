"""An inclusive scan in dynamic shared memory, two buffers by turns, and a scan of the blocks' sums."""

import numpy as np
from numba import cuda, int32


@cuda.jit
def scan_blocks(x, sums):
    buffers = cuda.shared.array(0, int32)
    n, t, i = cuda.blockDim.x, cuda.threadIdx.x, cuda.grid(1)
    source = 0
    buffers[t] = x[i]
    cuda.syncthreads()  # the first buffer is full
    step = 1
    while step < n:
        value = buffers[source * n + t]
        if t >= step:
            value += buffers[source * n + t - step]
        source = 1 - source
        buffers[source * n + t] = value
        cuda.syncthreads()  # the other buffer is full
        step *= 2
    x[i] = buffers[source * n + t]
    if t == n - 1:
        sums[cuda.blockIdx.x] = x[i]


@cuda.jit
def add_before(x, sums):
    if cuda.blockIdx.x > 0:
        x[cuda.grid(1)] += sums[cuda.blockIdx.x - 1]


def scan(host, threads=32):
    blocks = host.size // threads
    x, sums, rest = cuda.to_device(host), cuda.device_array(blocks, np.int32), cuda.device_array(1, np.int32)
    scan_blocks[blocks, threads, 0, 2 * threads * 4](x, sums)
    scan_blocks[1, blocks, 0, 2 * blocks * 4](sums, rest)
    add_before.configure(blocks, threads)(x, sums)
    return x.copy_to_host()


x = np.random.default_rng(0).integers(0, 10, 256).astype(np.int32)
print("result:", int((scan(x) == np.cumsum(x)).all()), scan(x)[-1])
