"""race: block 1 begins one element after block 0."""


def square(x, y):
    i = cuda.blockIdx.x + cuda.threadIdx.x
    if i < x.shape[0]:
        y[i] = x[i] * x[i]
