"""values: a run that goes on in the next warp is lost, as the last lane gets its own id back.

Says: n = 32
"""


def segmented_sum(x, ids, sums):
    i = cuda.grid(1)
    lane = cuda.threadIdx.x % 32
    value = float32(0)
    segment = int32(-1)
    if i < x.shape[0]:
        value = x[i]
        segment = ids[i]
    for level in range(5):
        before = cuda.shfl_up_sync(0xFFFFFFFF, value, 1 << level)
        its = cuda.shfl_up_sync(0xFFFFFFFF, segment, 1 << level)
        if lane >= 1 << level and its == segment:
            value += before
    after = cuda.shfl_down_sync(0xFFFFFFFF, segment, 1)
    if segment >= 0 and after != segment:
        cuda.atomic.add(sums, segment, value)
