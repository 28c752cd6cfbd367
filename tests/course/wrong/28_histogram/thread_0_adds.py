"""budget: thread 0 adds all bins to counts.

Says: let all threads share the work
"""


def histogram(x, counts):
    private = cuda.shared.array(64, int32)
    bins = counts.shape[0]
    thread = cuda.threadIdx.x
    private[thread] = 0
    cuda.syncthreads()
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        if 0 <= x[i] < bins:
            cuda.atomic.add(private, x[i], 1)
    cuda.syncthreads()
    if thread == 0:
        for k in range(bins):
            cuda.atomic.add(counts, k, private[k])
