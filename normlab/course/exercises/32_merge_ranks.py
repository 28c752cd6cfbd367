"""32 · A row that lives on several machines.

The columns of each row are dealt out to several machines, called ranks. Each rank has computed count,
mean and m2 = Σ (x - mean)² of its own columns of every row, and all messages have arrived. Merge them
to the mean and the (biased) variance of the whole rows.

Ranks may have different numbers of columns. A rank without columns has sent zeros. In NumPy, with the
columns x_r of each rank at hand:

    x = np.concatenate([x_0, x_1, ...], axis=1)        mean = x.mean(1)        variance = x.var(1)

`chan_merge` is the function of exercise 8, from normlab. It merges empty groups, too.

Checked: right for any numbers of ranks and rows, means far from 0 included; each message loaded at most
twice.

To write: about 9 lines.

Tutorial: normlab tutorials 16. Next: exercise 33, add_norm.
"""

from normlab.engine import cuda, float32
from normlab.stages.moments import chan_merge


@cuda.jit
def merge_ranks(counts, means, m2s, mean, variance):
    """Thread i merges row i: counts is (ranks,), means and m2s are (ranks, rows), mean and variance (rows,)."""
    row = cuda.grid(1)
    # Your lines.
