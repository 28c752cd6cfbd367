"""race: every thread writes every element."""


def double(x, y):
    for i in range(x.shape[0]):
        y[i] = float32(2) * x[i]
