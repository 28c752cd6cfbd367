"""values: a thread takes 15 elements at most."""


@cuda.jit
def histogram(x, counts):
    private = cuda.shared.array(64, int32)
    bins = counts.shape[0]
    thread = cuda.threadIdx.x
    private[thread] = 0
    cuda.syncthreads()
    for turn in range(15):
        i = cuda.grid(1) + turn * cuda.gridsize(1)
        if i < x.shape[0] and x[i] >= 0 and x[i] < bins:
            cuda.atomic.add(private, x[i], 1)
    cuda.syncthreads()
    if thread < bins:
        cuda.atomic.add(counts, thread, private[thread])
