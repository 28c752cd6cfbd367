"""4 · Many blocks, and a number for each thread of all.

A block has 1024 threads at most. For more elements a launch has many blocks, and a GPU runs many of
them at the same time. In each block threadIdx.x begins with 0 again, so it is no longer the number
of an element. Three numbers help:

    cuda.blockIdx.x      the block's number: 0, 1, 2, …
    cuda.blockDim.x      how many threads a block has: the same in all blocks
    cuda.threadIdx.x     the thread's number in its block

Block 0 takes the first blockDim.x elements, block 1 the next ones. Which element does thread 3 of
block 2 take, if a block has 32 threads? The last block may have more threads than elements are
left.

In NumPy:

    y = x * x

Checked: right for any number of elements, with blocks of 1 to 64 threads.

To write: 3 lines.

Tutorial: normlab tutorials 1. Next: exercise 5, stencil.
"""

from normlab.engine import cuda


@cuda.jit
def square(x, y):
    """y = x x, both (n,): as many blocks as n elements need, all with the same number of threads."""
    # Your lines.
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < x.shape[0]:
        y[i] = x[i] * x[i]
