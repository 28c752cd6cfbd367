"""31 · The two largest.

A router of experts sends each token to the two experts with the largest scores. In NumPy:

    largest = np.sort(x, axis=1)[:, :-3:-1]        first the largest, then the second largest

Sorting does far too much. Two numbers are enough to remember of any group of values: (first,
second), with first >= second. Two groups become one:

    first_a, second_a and first_b, second_b: which of the four are the two largest?

There is a way without a single if, by min and max. One value is a group, too: (value, -inf). A value
that stands in the row twice counts twice: the two largest of 7 3 7 are 7 and 7. A row of one element
has -inf as its second.

In a maximum it does no harm to count a value twice. Does it here? So no value may get into a group
twice: mind which lanes, and which warps, a thread's own group has in it already.

Checked: right for any number of columns, with ties and -inf (there are no NaN here); the row loaded
once; at most 56 exchanges a row (shuffles and accesses of shared memory, counted by warps).

To write: about 18 lines.

Tutorial: normlab tutorials 5. Next: exercise 32, merge_ranks.
"""

import math

from normlab.engine import cuda, float32


@cuda.jit(device=True)
def merge(first_a, second_a, first_b, second_b):
    """Return the two largest values of two groups together, the larger one first."""
    # Your lines.


@cuda.jit
def top_two(x, largest):
    """A block of 64 threads per row: x is (rows, columns), largest is (rows, 2)."""
    buffer = cuda.shared.array((2, 2), float32)
    row = cuda.blockIdx.x
    thread = cuda.threadIdx.x
    first = float32(-math.inf)
    second = float32(-math.inf)
    # Your lines.
