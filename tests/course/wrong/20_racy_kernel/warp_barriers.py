"""race: cells of two warps are neighbours, too.

Says: put cuda.syncthreads()
"""


def smooth(x, times, y):
    line = cuda.shared.array(64, float32)
    cell = cuda.threadIdx.x
    cells = x.shape[0]
    value = float32(0)
    if cell < cells:
        value = x[cell]
        line[cell] = value
    cuda.syncwarp()
    for _ in range(times):
        if 0 < cell < cells - 1:
            value = line[cell - 1] * float32(0.25) + line[cell] * float32(0.5) + line[cell + 1] * float32(0.25)
        cuda.syncwarp()
        if cell < cells:
            line[cell] = value
        cuda.syncwarp()
    if cell < cells:
        y[cell] = value
