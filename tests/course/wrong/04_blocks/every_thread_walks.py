"""race: every thread writes every element."""


def square(x, y):
    for i in range(x.shape[0]):
        y[i] = x[i] * x[i]
