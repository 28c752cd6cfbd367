"""5 · Neighbours, through shared memory.

    y[i] = x[i - 1] + x[i] + x[i + 1]        with 0 in place of what lies outside of x

Each element of x is needed by three threads. If each thread loaded its three elements, everything
would be loaded three times. Instead, a block loads its part of x once into shared memory, an array
that all threads of the block see, and every thread reads its three numbers there.

The block has 32 threads, and its part of x has 32 elements. But thread 0 needs the element before
the part, and thread 31 the one after it. These two are the halo. So the shared array has 34
elements:

    tile[0]        the element before the part: x[first - 1], or 0
    tile[1 + t]    the element of thread t:     x[first + t], or 0
    tile[33]       the element after the part:  x[first + 32], or 0

A thread must not read from tile before the other threads have written. cuda.syncthreads() is a
barrier: no thread goes on before all threads of the block have come to it. So no thread may skip
it.

Checked: right for any number of elements; no races; one barrier for each block; every element of x
loaded once, apart from the halo.

To write: about 9 lines.

Tutorial: normlab tutorials 5. Next: exercise 6, launch_size.
"""

from normlab.engine import cuda, float32


@cuda.jit
def sum_of_three(x, y):
    """Add up each element and its two neighbours: x and y are (n,). A block of 32 threads for each 32 elements."""
    tile = cuda.shared.array(34, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    # Your lines.
