"""exception: begins where 16 bytes do not.

Says: misaligned address
"""


def copy(x, y):
    first = cuda.grid(1) * 4
    n = x.shape[0]
    if first + 5 <= n:
        y[first] = x[first]
        store_vector(y, first + 1, load_vector(x, first + 1, 4))
    else:
        for i in range(first, n):
            y[i] = x[i]
