"""20 · A kernel that is wrong on Tuesdays.

A line of cells is smoothed in shared memory, several times: each inner cell becomes a quarter of
its left neighbour, half of itself and a quarter of its right neighbour. In NumPy, each time:

    line[1:-1] = line[:-2] / 4 + line[1:-1] / 2 + line[2:] / 4

where the right side has old values only.

The kernel below says the same, thread by thread, but has not a single barrier. Threads of one warp
happen to run in step on many GPUs, so with few cells it works, and with more it works mostly. Find
out which read must come before which write, and which write before which read, and make it so: run
the check, and let it tell you who meets whom.

Remember that all threads of the block have to come to a barrier, also those that have no cell.

Checked: right, no races; at most 2 barriers for each time that the line is smoothed, and 1 more; 3
lines added.

To write: 3 lines.

Tutorial: normlab tutorials 5. Next: exercise 21, coalescing.
"""

from normlab.engine import cuda, float32


@cuda.jit
def smooth(x, times, y):
    """One block of 64 threads: x and y are (cells,), up to 64 cells, a thread for each."""
    line = cuda.shared.array(64, float32)
    cell = cuda.threadIdx.x
    cells = x.shape[0]
    value = float32(0)
    if cell < cells:
        value = x[cell]
        line[cell] = value
    # Your line, if one belongs here.
    for _ in range(times):
        if 0 < cell < cells - 1:
            value = line[cell - 1] * float32(0.25) + line[cell] * float32(0.5) + line[cell + 1] * float32(0.25)
            # Your line, if one belongs here.
        # Your line, if one belongs here.
        if cell < cells:
            line[cell] = value
        # Your line, if one belongs here.
    # Your line, if one belongs here.
    if cell < cells:
        y[cell] = value
