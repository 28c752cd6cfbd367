"""25 · A running sum, by doubling distances.

The inclusive scan of a row is its running sum: y[i] = x[0] + x[1] + … + x[i]. In NumPy:

    y = x.cumsum(axis=1)

That looks like work for one thread, because each sum needs the sum before it. Hillis and Steele
found a way with few steps. Each thread starts with its own element. In a step of distance d each
thread adds what the thread d places before it has so far. The distances are 1, 2, 4, …: after each
step a thread's sum reaches twice as far back, and after 6 steps 64 threads have finished.

A thread must not read its neighbour's sum too early, or after the neighbour has overwritten it. With
one line in shared memory that takes two barriers a step. With two lines, used in turn, one barrier a
step is enough. Why may a thread write line 0 again, two steps later, without one more barrier?

Threads beyond the end of the row have no element, but come to every barrier all the same.

Checked: right for any number of columns up to 64, no races; at most 7 barriers a row, and at most 51
exchanges a row (shuffles and accesses of shared memory, counted by warps).

To write: about 10 lines.

Tutorial: normlab tutorials 5. Next: exercise 26, scan_work_efficient.
"""

from normlab.engine import cuda, float32


@cuda.jit
def scan(x, y):
    """A block of 64 threads per row, and a thread per element: x and y are (rows, columns), up to 64 columns."""
    lines = cuda.shared.array((2, 64), float32)
    row = cuda.blockIdx.x
    column = cuda.threadIdx.x
    # Your lines.
