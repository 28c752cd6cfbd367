"""budget: the first element's thread adds up its whole segment.

Says: loaded by one thread
"""


def segmented_sum(x, ids, sums):
    i = cuda.grid(1)
    lane = cuda.threadIdx.x % 32
    value = float32(0)
    segment = int32(-1)
    if i < x.shape[0] and (i == 0 or ids[i - 1] != ids[i]):
        k = i
        while k < x.shape[0] and ids[k] == ids[i]:
            value += x[k]
            k += 1
        sums[ids[i]] = value
