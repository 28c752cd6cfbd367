"""Sums three ways: a tree in shared memory, shuffles and an atomic, and `cuda.reduce`."""

import numpy as np
from numba import cuda, float64, int64

THREADS = 128


@cuda.jit
def tree_sums(x, partials):
    shared = cuda.shared.array(THREADS, dtype=int64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    shared[t] = x[i] if i < x.size else 0
    cuda.syncthreads()  # every element is there
    half = THREADS // 2
    while half > 0:
        if t < half:
            shared[t] += shared[t + half]
        cuda.syncthreads()  # the upper half is in
        half //= 2
    if t == 0:
        partials[cuda.blockIdx.x] = shared[0]


@cuda.jit
def shuffle_sum(x, total):
    value = float64(0)
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        value += x[i]
    offset = 16
    while offset:
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, offset)
        offset //= 2
    if cuda.laneid == 0:
        cuda.atomic.add(total, 0, value)


@cuda.reduce
def larger(a, b):
    return a if a > b else b


x = np.arange(700) * 3 % 101
blocks = -(-x.size // THREADS)
partials = cuda.device_array(blocks, np.int64)
tree_sums[blocks, THREADS](x, partials)
total = np.zeros(1)
shuffle_sum[2, 64](x.astype(np.float64), total)
sum_of = cuda.Reduce(lambda a, b: a + b)
first = np.zeros(1, np.int64)
d_first = cuda.to_device(first)
sum_of(x, size=300, res=d_first)
print("result:", partials.copy_to_host().sum(), total[0], sum_of(cuda.to_device(x)), sum_of(x, init=1000))
print("result:", larger(x), d_first[0], sum_of(x[:0], init=5))
