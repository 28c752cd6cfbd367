"""values: the last elements are never copied.

Says: no thread wrote it
"""


def copy(x, y):
    first = cuda.grid(1) * 4
    n = x.shape[0]
    if first + 4 <= n:
        store_vector(y, first, load_vector(x, first, 4))
