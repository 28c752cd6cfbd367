"""Copy any number of elements, four at a time. An exercise of tutorial 12, which has the task."""

from normlab.engine import cuda, load_vector, store_vector


@cuda.jit
def copy_vectors(x, y):
    """y = x, both (n,): a thread for each 4 elements; 64 threads per block."""
    # Your lines.
