"""The scan of (value, flag), where a flag marks the beginning of a run: the textbook's operator."""


def segmented_sum(x, ids, sums):
    i = cuda.grid(1)
    lane = cuda.threadIdx.x % 32
    value = float32(0)
    segment = int32(-1)
    if i < x.shape[0]:
        value = x[i]
        segment = ids[i]
    before = cuda.shfl_up_sync(0xFFFFFFFF, segment, 1)
    flag = int32(1) if lane == 0 or before != segment else int32(0)
    next_flag = cuda.shfl_down_sync(0xFFFFFFFF, flag, 1)
    distance = 1
    while distance < 32:
        other = cuda.shfl_up_sync(0xFFFFFFFF, value, distance)
        other_flag = cuda.shfl_up_sync(0xFFFFFFFF, flag, distance)
        if lane >= distance and flag == 0:
            value += other
            flag = other_flag
        distance *= 2
    if i < x.shape[0] and (lane == 31 or next_flag == 1):
        cuda.atomic.add(sums, segment, value)
