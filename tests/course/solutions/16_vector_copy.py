"""16 · Four at a time."""


def copy(x, y):
    first = cuda.grid(1) * 4
    n = x.shape[0]
    # Your lines.
    if first + 4 <= n:
        store_vector(y, first, load_vector(x, first, 4))
    else:
        for i in range(first, n):
            y[i] = x[i]
