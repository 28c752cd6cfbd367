"""The loop has no turn for a thread beyond the end."""


def negate(x, y):
    for i in range(cuda.threadIdx.x, len(x), cuda.blockDim.x):
        y[i] = -x[i]
