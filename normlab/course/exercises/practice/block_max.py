"""Find a block's maximum. An exercise of tutorial 5, which has the task."""

from normlab.engine import cuda, float32


@cuda.jit
def block_max(x, maxima):
    """A block of 128 threads per row: x and maxima are (rows, 128); every thread writes its row's maximum."""
    # Your lines.
