"""values: on a tie the own candidate wins, whatever its index; and a NaN never does."""


def better(value_a, index_a, value_b, index_b):
    if value_b > value_a:
        return value_b, index_b
    return value_a, index_a


def argmax(x, maxima, indices):
    values = cuda.shared.array(2, float32)
    places = cuda.shared.array(2, int32)
    row = cuda.blockIdx.x
    thread = cuda.threadIdx.x
    columns = x.shape[1]
    value = float32(-math.inf)
    index = int32(columns)
    for column in range(thread, columns, 64):
        value, index = better(value, index, x[row, column], int32(column))
    for level in range(5):
        value_b = cuda.shfl_xor_sync(0xFFFFFFFF, value, 16 >> level)
        index_b = cuda.shfl_xor_sync(0xFFFFFFFF, index, 16 >> level)
        value, index = better(value, index, value_b, index_b)
    if thread % 32 == 0:
        values[thread // 32] = value
        places[thread // 32] = index
    cuda.syncthreads()
    if thread == 0:
        maxima[row], indices[row] = better(values[0], places[0], values[1], places[1])
