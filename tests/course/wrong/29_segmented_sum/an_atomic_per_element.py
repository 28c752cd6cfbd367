"""budget: right, and all elements of a segment queue at one sum.

Says: one for each run
"""


def segmented_sum(x, ids, sums):
    i = cuda.grid(1)
    lane = cuda.threadIdx.x % 32
    value = float32(0)
    segment = int32(-1)
    if i < x.shape[0]:
        cuda.atomic.add(sums, ids[i], x[i])
