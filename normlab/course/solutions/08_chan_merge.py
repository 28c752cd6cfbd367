"""8 · Two groups become one: Chan's merge.

Two threads have looked at different values. One knows (mean, m2, count) of its group a, the other
of its group b, and the values themselves are gone. What are the three numbers of both groups
together?

With delta = mean_b - mean_a and count = count_a + count_b:

    mean = mean_a + delta · count_b / count
    m2   = m2_a + m2_b + delta² · count_a · count_b / count

The last term is there because each group is spread around a mean of its own, and these are delta
apart. In NumPy, with the values at hand:

    v = np.concatenate([a, b])        mean = v.mean()        m2 = ((v - mean) ** 2).sum()

Checked: right for groups of 1 to 50 values each, of different sizes.

To write: about 4 lines.

Tutorial: normlab tutorials 3. Next: exercise 9, count_zero.
"""

from normlab.engine import cuda


@cuda.jit(device=True)
def chan_merge(mean_a, m2_a, count_a, mean_b, m2_b, count_b):
    """Return (mean, m2, count) of groups a and b together; all numbers are float32."""
    # Your lines.
    count = count_a + count_b
    share_b = count_b / count
    delta = mean_b - mean_a
    return mean_a + delta * share_b, m2_a + m2_b + delta * delta * count_a * share_b, count


@cuda.jit
def merge_pairs(a, b, merged):
    """Thread i merges the i-th pair: a, b and merged are (3, pairs), with rows mean, m2 and count."""
    i = cuda.grid(1)
    if i < merged.shape[1]:
        mean, m2, count = chan_merge(a[0, i], a[1, i], a[2, i], b[0, i], b[1, i], b[2, i])
        merged[0, i] = mean
        merged[1, i] = m2
        merged[2, i] = count
