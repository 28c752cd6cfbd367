"""budget: every number is counted in global memory.

Says: global atomics
"""


def histogram(x, counts):
    private = cuda.shared.array(64, int32)
    bins = counts.shape[0]
    thread = cuda.threadIdx.x
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        if 0 <= x[i] < bins:
            cuda.atomic.add(counts, x[i], 1)
