"""A vote tells where each run starts, so that only values are shuffled."""


def segmented_sum(x, ids, sums):
    i = cuda.grid(1)
    lane = cuda.threadIdx.x % 32
    value = float32(0)
    segment = int32(-1)
    if i < x.shape[0]:
        value = x[i]
        segment = ids[i]
    before = cuda.shfl_up_sync(0xFFFFFFFF, segment, 1)
    starts = cuda.ballot_sync(0xFFFFFFFF, lane == 0 or before != segment)
    own = starts & ((2 << lane) - 1)
    first = 0
    while own > 1:
        own >>= 1
        first += 1
    for level in range(5):
        other = cuda.shfl_up_sync(0xFFFFFFFF, value, 1 << level)
        if lane - (1 << level) >= first:
            value += other
    last = lane == 31 or (starts >> (lane + 1)) & 1 == 1
    if last and segment >= 0:
        cuda.atomic.add(sums, segment, value)
