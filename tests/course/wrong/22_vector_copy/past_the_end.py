"""out-of-bounds: reads four where fewer are left."""


def copy(x, y):
    first = cuda.grid(1) * 4
    n = x.shape[0]
    if first < n:
        store_vector(y, first, load_vector(x, first, 4))
