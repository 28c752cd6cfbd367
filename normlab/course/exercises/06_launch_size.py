"""6 · A launch size of your own.

So far the launch came with the exercise. Now you say how large it is. A launch is written as

    square[blocks, threads](x, y)

and a GPU starts that many blocks of that many threads. The kernel below is there. What is missing
is the number of blocks. The function `blocks` runs before the kernel, on the host (the computer
that the GPU is in), and it is plain Python: it gets the number of elements, n, and returns a whole
number.

With too few blocks the last elements are left out. With too many there are blocks without any
element: they start, find nothing to do, and end. n need not be a multiple of THREADS, and where it
is one there must not be a block too many.

Checked: right for any number of elements, with as few blocks as possible.

To write: 1 line.

Tutorial: normlab tutorials 1. Next: exercise 7, welford_step.
"""

from normlab.engine import cuda

THREADS = 64


def blocks(n):
    """Return how many blocks of THREADS threads a launch for n elements needs; n is 1 or more."""
    # Your line.


@cuda.jit
def square(x, y):
    """y = x x, both (n,), launched as square[blocks(n), THREADS](x, y)."""
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = x[i] * x[i]
