"""Find a warp's maximum. An exercise of tutorial 4, which has the task."""

from normlab.engine import cuda


@cuda.jit
def row_max(x, maxima):
    """A warp, which is the block, per row: x and maxima are (rows, 32); every lane writes its row's maximum."""
    # Your lines.
