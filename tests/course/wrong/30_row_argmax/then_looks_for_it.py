"""budget: the maximum in one pass, and its index in another.

Says: one pass over the row"""


def better(value_a, index_a, value_b, index_b):
    nan_a = value_a != value_a
    nan_b = value_b != value_b
    if nan_a or nan_b:
        a_wins = nan_a and not (nan_b and index_b < index_a)
    else:
        a_wins = value_a > value_b or (value_a == value_b and index_a < index_b)
    if a_wins:
        return value_a, index_a
    return value_b, index_b


def argmax(x, maxima, indices):
    values = cuda.shared.array(2, float32)
    places = cuda.shared.array(2, int32)
    row = cuda.blockIdx.x
    thread = cuda.threadIdx.x
    columns = x.shape[1]
    value = float32(-math.inf)
    nan = False
    for column in range(thread, columns, 64):
        if x[row, column] != x[row, column]:
            nan = True
        value = max(value, x[row, column])
    if nan:
        value = float32(math.nan)
    for level in range(5):
        other = cuda.shfl_xor_sync(0xFFFFFFFF, value, 16 >> level)
        value, _ = better(value, int32(0), other, int32(0))
    if thread % 32 == 0:
        values[thread // 32] = value
    cuda.syncthreads()
    value, _ = better(values[0], int32(0), values[1], int32(0))
    index = int32(columns)
    for column in range(thread, columns, 64):
        same = x[row, column] == value or (x[row, column] != x[row, column] and value != value)
        if same and column < index:
            index = int32(column)
    for level in range(5):
        index = min(index, cuda.shfl_xor_sync(0xFFFFFFFF, index, 16 >> level))
    if thread % 32 == 0:
        places[thread // 32] = index
    cuda.syncthreads()
    if thread == 0:
        maxima[row] = value
        indices[row] = min(places[0], places[1])
