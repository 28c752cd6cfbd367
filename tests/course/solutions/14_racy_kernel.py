"""14 · A kernel that is wrong on Tuesdays."""


def smooth(x, times, y):
    line = cuda.shared.array(64, float32)
    cell = cuda.threadIdx.x
    cells = x.shape[0]
    value = float32(0)
    if cell < cells:
        value = x[cell]
        line[cell] = value
    # Your line, if one belongs here.
    cuda.syncthreads()
    for _ in range(times):
        if 0 < cell < cells - 1:
            value = line[cell - 1] * float32(0.25) + line[cell] * float32(0.5) + line[cell + 1] * float32(0.25)
            # Your line, if one belongs here.
        # Your line, if one belongs here.
        cuda.syncthreads()  # all have read the old line before it is written
        if cell < cells:
            line[cell] = value
        # Your line, if one belongs here.
        cuda.syncthreads()  # the new line is there before it is read
    # Your line, if one belongs here.
    if cell < cells:
        y[cell] = value
