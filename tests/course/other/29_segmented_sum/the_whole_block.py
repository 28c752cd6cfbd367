"""The scan runs over the block in shared memory: a run of two warps takes one atomic addition, too."""


def segmented_sum(x, ids, sums):
    i = cuda.grid(1)
    lane = cuda.threadIdx.x % 32
    value = float32(0)
    segment = int32(-1)
    values = cuda.shared.array((2, 64), float32)
    segments = cuda.shared.array(65, int32)
    thread = cuda.threadIdx.x
    if i < x.shape[0]:
        value = x[i]
        segment = ids[i]
    segments[thread] = segment
    if thread == 0:
        segments[64] = -1
    for level in range(6):
        values[level % 2, thread] = value
        cuda.syncthreads()
        if thread >= 1 << level and segments[thread - (1 << level)] == segment:
            value += values[level % 2, thread - (1 << level)]
    if segment >= 0 and segments[thread + 1] != segment:
        cuda.atomic.add(sums, segment, value)
