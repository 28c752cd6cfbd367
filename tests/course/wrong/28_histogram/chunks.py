"""budget: a thread's numbers are neighbours, so the lanes' are not.

Says: sectors loaded
"""


def histogram(x, counts):
    private = cuda.shared.array(64, int32)
    bins = counts.shape[0]
    thread = cuda.threadIdx.x
    private[thread] = 0
    cuda.syncthreads()
    share = (x.shape[0] + cuda.gridsize(1) - 1) // cuda.gridsize(1)
    first = cuda.grid(1) * share
    for i in range(first, min(first + share, x.shape[0])):
        if 0 <= x[i] < bins:
            cuda.atomic.add(private, x[i], 1)
    cuda.syncthreads()
    if thread < bins:
        cuda.atomic.add(counts, thread, private[thread])
