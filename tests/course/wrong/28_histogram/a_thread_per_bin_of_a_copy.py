"""budget: the block loads its share once, and then each thread looks through 64 numbers at a time for its own.

Says: accesses of shared memory by all threads together
"""


def histogram(x, counts):
    private = cuda.shared.array(64, int32)
    bins = counts.shape[0]
    thread = cuda.threadIdx.x
    count = 0
    for first in range(64 * cuda.blockIdx.x, x.shape[0], cuda.gridsize(1)):
        cuda.syncthreads()
        if first + thread < x.shape[0]:
            private[thread] = x[first + thread]
        else:
            private[thread] = -1
        cuda.syncthreads()
        for k in range(64):
            if private[k] == thread:
                count += 1
    if thread < bins:
        cuda.atomic.add(counts, thread, count)
