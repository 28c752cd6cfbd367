"""Swaps two candidates, and thread 0 keeps its own warp's in registers."""


@cuda.jit(device=True)
def better(value_a, index_a, value_b, index_b):
    swap = value_b > value_a or (value_b == value_a and index_b < index_a)
    if math.isnan(value_b):
        swap = not math.isnan(value_a) or index_b < index_a
    elif math.isnan(value_a):
        swap = False
    return (value_b, index_b) if swap else (value_a, index_a)


@cuda.jit
def argmax(x, maxima, indices):
    values = cuda.shared.array(2, float32)
    places = cuda.shared.array(2, int32)
    row = cuda.blockIdx.x
    thread = cuda.threadIdx.x
    columns = x.shape[1]
    lane, warp = thread % 32, thread // 32
    v, k = float32(-math.inf), int32(0x7FFFFFFF)
    c = thread
    while c < columns:
        v, k = better(v, k, x[row, c], int32(c))
        c += cuda.blockDim.x
    for d in (1, 2, 4, 8, 16):
        v2 = cuda.shfl_down_sync(0xFFFFFFFF, v, d)
        k2 = cuda.shfl_down_sync(0xFFFFFFFF, k, d)
        if lane + d < 32:
            v, k = better(v, k, v2, k2)
    if lane == 0 and warp == 1:
        values[0], places[0] = v, k
    cuda.syncthreads()
    if thread == 0:
        v, k = better(v, k, values[0], places[0])
        maxima[row] = v
        indices[row] = k
