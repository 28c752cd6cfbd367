"""budget: each thread looks for its segment in all of ids.

Says: elements of global memory loaded by one thread
"""


def segmented_sum(x, ids, sums):
    i = cuda.grid(1)
    lane = cuda.threadIdx.x % 32
    value = float32(0)
    segment = int32(-1)
    for own in range(i, sums.shape[0], cuda.gridsize(1)):
        total = float32(0)
        for k in range(x.shape[0]):
            if ids[k] == own:
                total += x[k]
        sums[own] = total
