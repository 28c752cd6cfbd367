"""2 · More threads than elements.

A launch has a fixed number of threads, and the data seldom has as many elements. Here 64 threads
run, and x has 1 to 64 elements. Thread number 50 has nothing to do if x has 50 elements: there is
no x[50]. On a GPU there would be no error message. The thread would read what lies after x in
memory, and write over what lies after y.

So each thread asks first whether its element exists, and does nothing otherwise. The question is
called a guard. An array's length is x.shape[0].

In NumPy:

    y = -x

Checked: right for 1 to 64 elements, with 64 threads; no thread touches what lies outside of an
array.

To write: 3 lines.

Tutorial: normlab tutorials 1. Next: exercise 3, map_2d.
"""

from normlab.engine import cuda


@cuda.jit
def negate(x, y):
    """y = -x, both (n,), by one block of 64 threads; n is 64 at most."""
    # Your lines.
