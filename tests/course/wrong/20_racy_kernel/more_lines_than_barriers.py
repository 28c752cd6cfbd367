"""lines: right, in more words than it needs.

Says: at most 3 allowed
"""


def smooth(x, times, y):
    line = cuda.shared.array(64, float32)
    cell = cuda.threadIdx.x
    cells = x.shape[0]
    value = float32(0)
    if cell < cells:
        value = x[cell]
        line[cell] = value
    cuda.syncthreads()
    for _ in range(times):
        if 0 < cell < cells - 1:
            value = line[cell - 1] * float32(0.25) + line[cell] * float32(0.5) + line[cell + 1] * float32(0.25)
        waits = True
        if waits:
            cuda.syncthreads()
        if cell < cells:
            line[cell] = value
        cuda.syncthreads()
    if cell < cells:
        y[cell] = value
