"""deadlock: lane 31 knows that its run ends, so that Python's `or` leaves out its part in the shuffle."""


def segmented_sum(x, ids, sums):
    i = cuda.grid(1)
    lane = cuda.threadIdx.x % 32
    value = float32(0)
    segment = int32(-1)
    if i < x.shape[0]:
        value = x[i]
        segment = ids[i]
    ends = lane == 31 or cuda.shfl_down_sync(0xFFFFFFFF, segment, 1) != segment
    for level in range(5):
        before = cuda.shfl_up_sync(0xFFFFFFFF, value, 1 << level)
        its = cuda.shfl_up_sync(0xFFFFFFFF, segment, 1 << level)
        if lane >= 1 << level and its == segment:
            value += before
    if segment >= 0 and ends:
        cuda.atomic.add(sums, segment, value)
