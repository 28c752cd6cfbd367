"""Lane 0 gets the best of its warp; every thread takes the better of the two warps, and one of them stores it."""


def better(value_a, index_a, value_b, index_b):
    if value_a == value_b or (math.isnan(value_a) and math.isnan(value_b)):
        return value_a, min(index_a, index_b)
    if value_a > value_b or math.isnan(value_a):
        return value_a, index_a
    return value_b, index_b


def argmax(x, maxima, indices):
    values = cuda.shared.array(2, float32)
    places = cuda.shared.array(2, int32)
    row = cuda.blockIdx.x
    thread = cuda.threadIdx.x
    columns = x.shape[1]
    value = float32(-math.inf)
    index = int32(2147483647)
    column = thread
    while column < columns:
        value, index = better(x[row, column], int32(column), value, index)
        column += cuda.blockDim.x
    for level in range(5):
        value_b = cuda.shfl_down_sync(0xFFFFFFFF, value, 16 >> level)
        index_b = cuda.shfl_down_sync(0xFFFFFFFF, index, 16 >> level)
        value, index = better(value, index, value_b, index_b)
    if thread & 31 == 0:
        values[thread >> 5] = value
        places[thread >> 5] = index
    cuda.syncthreads()
    value, index = better(values[0], places[0], values[1], places[1])
    if thread == 63:
        maxima[row] = value
        indices[row] = index
