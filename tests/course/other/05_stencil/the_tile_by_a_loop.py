"""All threads fill the tile from its first element on; the block is one warp."""


@cuda.jit
def sum_of_three(x, y):
    tile = cuda.shared.array(34, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    for place in range(t, 34, 32):
        source = i - t + place - 1
        tile[place] = x[source] if 0 <= source < x.shape[0] else float32(0)
    cuda.syncwarp()
    if i < x.shape[0]:
        y[i] = tile[t] + tile[t + 1] + tile[t + 2]
