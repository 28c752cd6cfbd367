"""Each block has a stretch of x, of whole 64 numbers, through which its threads go side by side."""


def histogram(x, counts):
    private = cuda.shared.array(64, int32)
    bins = counts.shape[0]
    thread = cuda.threadIdx.x
    for k in range(thread, bins, 64):
        private[k] = 0
    cuda.syncthreads()
    turns = (x.shape[0] + 64 * cuda.gridDim.x - 1) // (64 * cuda.gridDim.x)
    for turn in range(turns):
        i = (cuda.blockIdx.x * turns + turn) * 64 + thread
        if i < x.shape[0]:
            number = x[i]
            if number >= 0 and number < bins:
                cuda.atomic.add(private, number, 1)
    cuda.syncthreads()
    for k in range(thread, bins, 64):
        cuda.atomic.add(counts, k, private[k])
