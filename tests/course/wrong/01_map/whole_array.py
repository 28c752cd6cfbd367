"""numpy: arithmetic with a whole array, as in NumPy."""


def double(x, y):
    y[:] = float32(2) * x
