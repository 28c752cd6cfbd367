"""The scan runs the other way, and the first lane of a run has its sum."""


def segmented_sum(x, ids, sums):
    i = cuda.grid(1)
    lane = cuda.threadIdx.x % 32
    value = float32(0)
    segment = int32(-1)
    inside = i < x.shape[0]
    if inside:
        segment = ids[i]
        value = x[i]
    for level in range(5):
        distance = 1 << level
        its = cuda.shfl_down_sync(0xFFFFFFFF, segment, distance)
        after = cuda.shfl_down_sync(0xFFFFFFFF, value, distance)
        if lane + distance < 32 and its == segment:
            value = value + after
    before = cuda.shfl_up_sync(0xFFFFFFFF, segment, 1)
    if inside and (lane == 0 or before != segment):
        cuda.atomic.add(sums, segment, value)
