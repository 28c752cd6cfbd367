"""budget: each thread looks through all of x for one number, without any atomic operation.

Says: elements of global memory loaded by one thread
"""


def histogram(x, counts):
    private = cuda.shared.array(64, int32)
    bins = counts.shape[0]
    thread = cuda.threadIdx.x
    if cuda.blockIdx.x == 0 and thread < bins:
        count = 0
        for i in range(x.shape[0]):
            if x[i] == thread:
                count += 1
        counts[thread] = count
