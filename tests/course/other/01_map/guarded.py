"""A guard does no harm."""


def double(x, y):
    if cuda.threadIdx.x < x.shape[0]:
        y[cuda.threadIdx.x] = x[cuda.threadIdx.x] * float32(2)
