"""1 · One thread, one element.

A kernel is a function that many threads run at the same time. Each thread runs it from top to
bottom, with the same arguments. What differs is the thread's number, cuda.threadIdx.x: it is 0 in
the first thread, 1 in the next one, and so on.

So there is no loop. A loop would go through the elements one after another. Here each thread takes
one element, the one that has the thread's own number, and all elements are done at once.

In NumPy:

    y = 2 * x

x and y have n elements, and n threads run. float32(2) is the number 2 as a float32: with a plain 2
or 2.0 a GPU may compute in float64, which is slow.

`normlab course check 1 --show` draws which thread wrote which element.

Checked: right for 1 to 64 elements; each thread loads one element and stores one.

To write: 2 lines.

Tutorial: normlab tutorials 1. Next: exercise 2, guard.
"""

from normlab.engine import cuda, float32


@cuda.jit
def double(x, y):
    """y = 2 x, both (n,), by one block of n threads."""
    # Your lines.
