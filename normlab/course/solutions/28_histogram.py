"""28 · A histogram, counted in private.

counts[b] says how often b stands in x. In NumPy:

    counts = np.bincount(x[(0 <= x) & (x < bins)], minlength=bins)

Two threads that find the same number must not overwrite each other's count: cuda.atomic.add(array,
index, 1) adds as one operation that no other thread can interrupt. But if all threads of the GPU add
to the same few elements of global memory, they queue there, the worse the more alike the numbers are.

So each block counts for itself first: it has a private copy of all bins in shared memory. At the end
it adds its copy to counts, with one atomic operation per bin. Shared memory holds garbage when a
block starts, so the block clears its copy before it counts.

The blocks share the elements of x: thread cuda.grid(1) takes this element, and then every
cuda.gridsize(1)-th after it. A number below 0, or of bins or more, belongs to no bin.

Checked: right for any numbers, any length, 1 to 64 bins and any number of blocks, no races; at most
one atomic operation on global memory for each block and bin; on shared memory at most 1.5 times the
accesses of one atomic operation per element, one store to clear each of 64 elements and one load for
each bin.

To write: about 10 lines.

Tutorial: normlab tutorials 8. Next: exercise 29, segmented_sum.
"""

from normlab.engine import cuda, int32


@cuda.jit
def clear(counts):
    """A thread per bin; this kernel runs first."""
    if cuda.grid(1) < counts.shape[0]:
        counts[cuda.grid(1)] = 0


@cuda.jit
def histogram(x, counts):
    """Any number of blocks of 64 threads: x is (n,), of int32; counts is (bins,), of int32, with up to 64 bins."""
    private = cuda.shared.array(64, int32)
    bins = counts.shape[0]
    thread = cuda.threadIdx.x
    # Your lines.
    private[thread] = 0
    cuda.syncthreads()  # the whole copy is cleared before any thread counts
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        number = x[i]
        if 0 <= number < bins:
            cuda.atomic.add(private, number, 1)
    cuda.syncthreads()  # all have counted
    if thread < bins:
        cuda.atomic.add(counts, thread, private[thread])
