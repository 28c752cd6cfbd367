"""29 · The sums of segments.

x holds segments of different lengths, one after another; ids[i] is the segment that x[i] belongs to.
The ids never fall: 0 0 0 2 2 5 … (segments 1, 3 and 4 are empty). In NumPy:

    sums = np.bincount(ids, weights=x, minlength=segments)

A thread per segment would be unfair, because one segment may hold nearly all of x. So each thread
has one element, whatever its segment. An atomic addition per element would be right, and slow: long
segments queue at one element of sums. A warp can do better: it adds up the runs of equal ids among
its 32 lanes, and then makes one atomic addition per run.

That is a scan again, by shuffles: in a step of distance d a lane adds what the lane d places before
it has so far, if that lane's id is its own. After distances 1, 2, 4, 8, 16 the last lane of a run has
the sum of the run. How does a lane know that it is the last one?

    cuda.shfl_up_sync(0xFFFFFFFF, value, d)        gives the value of the lane d places before; the first d
                                                   lanes get their own value back

All 32 lanes take part in a shuffle, also those beyond the end of x.

Checked: right for any length and any segments; one atomic addition for each run of equal ids in a
warp, at most; at most 27 exchanges a warp (shuffles, votes and accesses of shared memory).

To write: about 14 lines.

Tutorial: normlab tutorials 8. Next: exercise 30, row_argmax.
"""

from normlab.engine import cuda, float32, int32


@cuda.jit
def clear(sums):
    """A thread per segment; this kernel runs first."""
    if cuda.grid(1) < sums.shape[0]:
        sums[cuda.grid(1)] = 0


@cuda.jit
def segmented_sum(x, ids, sums):
    """A thread per element, in blocks of 64: x is (n,), ids is (n,), of int32, sums is (segments,)."""
    i = cuda.grid(1)
    lane = cuda.threadIdx.x % 32
    value = float32(0)
    segment = int32(-1)
    # Your lines.
