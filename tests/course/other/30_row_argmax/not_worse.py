"""The order in one expression, and a walk that needs it only for larger values: columns rise within a thread."""


def better(value_a, index_a, value_b, index_b):
    b_larger = value_b > value_a or (math.isnan(value_b) and not math.isnan(value_a))
    a_larger = value_a > value_b or (math.isnan(value_a) and not math.isnan(value_b))
    if b_larger or (not a_larger and index_b < index_a):
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
    for column in range(thread, columns, cuda.blockDim.x):
        found = x[row, column]
        if index == columns or found > value or (math.isnan(found) and not math.isnan(value)):
            value = found
            index = int32(column)
    for level in range(5):
        source = (thread + (1 << level)) % 32
        value_b = cuda.shfl_sync(0xFFFFFFFF, value, source)
        index_b = cuda.shfl_sync(0xFFFFFFFF, index, source)
        value, index = better(value, index, value_b, index_b)
    if thread == 32:
        values[1] = value
        places[1] = index
    cuda.syncthreads()
    if thread == 0:
        value, index = better(value, index, values[1], places[1])
        maxima[row] = value
        indices[row] = index
