"""Copy any number of elements, four at a time. An exercise of tutorial 12, which has the task."""

from normlab.engine import cuda, load_vector, store_vector


@cuda.jit
def copy_vectors(x, y):
    """y = x, both (n,): a thread for each 4 elements; 64 threads a block."""
    # Your lines.
    i = 4 * cuda.grid(1)
    if i + 4 <= x.shape[0]:
        store_vector(y, i, load_vector(x, i, 4))
    else:
        for k in range(i, x.shape[0]):
            y[k] = x[k]
