"""out-of-bounds: 256 elements, whatever comes."""


def copy(x, y):
    first = cuda.grid(1) * 4
    n = x.shape[0]
    if first + 4 <= 256:
        store_vector(y, first, load_vector(x, first, 4))
