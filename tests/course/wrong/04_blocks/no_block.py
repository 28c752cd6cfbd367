"""race: every block takes the first elements."""


def square(x, y):
    i = cuda.threadIdx.x
    if i < x.shape[0]:
        y[i] = x[i] * x[i]
