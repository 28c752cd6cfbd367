"""26 · A running sum, without wasted work.

Hillis and Steele's scan takes few steps, but each of n threads adds something in nearly each of
them: about n log2(n) additions, where one thread alone would need n - 1. Here is a scan with few
steps and fewer than 2 n additions. It has two halves, on a line of 128 elements in shared memory:

    up:   distance 1: elements 1, 3, 5, …      each add the element 1 place before them
          distance 2: elements 3, 7, 11, …     each add the element 2 places before them
          …
          distance 64: element 127             adds element 63
    down: distance 32: element 95              adds element 63
          distance 16: elements 47, 79, 111    each add the element 16 places before them
          …
          distance 1: elements 2, 4, 6, …      each add the element 1 place before them

On the way up an element becomes the sum of 2, 4, 8, … elements that end at it. On the way down each
of these sums is handed on to the elements that still lack it. Draw it for 8 elements, by hand.

A thread adds for one element per step, and has nothing to do in most steps. With a barrier between
two steps no thread reads a sum that is not there yet.

Checked: right for any number of columns up to 128, no races; at most 1,296 accesses of shared memory
a row, by all threads together (Hillis and Steele's scan makes 1,665); at most 16 barriers a row; no
shuffles, and no thread that does all of it.

To write: about 18 lines.

Tutorial: normlab tutorials 5. Next: exercise 27, online_softmax.
"""

from normlab.engine import cuda, float32


@cuda.jit
def scan(x, y):
    """A block of 64 threads per row, two elements per thread: x and y are (rows, columns), up to 128 columns."""
    line = cuda.shared.array(128, float32)
    row = cuda.blockIdx.x
    thread = cuda.threadIdx.x
    # Your lines.
    for column in range(thread, 128, 64):
        value = float32(0)
        if column < x.shape[1]:
            value = x[row, column]
        line[column] = value
    distance = 1
    while distance < 128:
        cuda.syncthreads()  # the sums of half this distance are there
        end = 2 * distance * (thread + 1) - 1
        if end < 128:
            line[end] += line[end - distance]
        distance *= 2
    distance = 32
    while distance > 0:
        cuda.syncthreads()  # the sums of twice this distance are there
        end = 2 * distance * (thread + 1) - 1 + distance
        if end < 128:
            line[end] += line[end - distance]
        distance //= 2
    cuda.syncthreads()  # all sums are there
    for column in range(thread, x.shape[1], 64):
        y[row, column] = line[column]
