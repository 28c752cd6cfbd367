"""values: takes a run's sum as the difference of two running sums, which cancels.

Says: may be off by
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
        if lane >= 1 << level:
            value += before
    its = cuda.shfl_up_sync(0xFFFFFFFF, segment, 1)
    starts = cuda.ballot_sync(0xFFFFFFFF, lane == 0 or its != segment)
    start = 31 - cuda.clz(int32(starts & ((2 << lane) - 1)))
    before = cuda.shfl_sync(0xFFFFFFFF, value, start - 1)
    after = cuda.shfl_down_sync(0xFFFFFFFF, segment, 1)
    if start > 0:
        value -= before
    if segment >= 0 and (lane == 31 or after != segment):
        cuda.atomic.add(sums, segment, value)
