"""Accumulate mean and variance: one thread adds a value to a group, or merges two groups.

The moments of a group are (mean, m2, count). m2 is the sum of squared deviations from the mean, so variance = m2 /
count. RMSNorm needs only the sum of squares. `row` adds each thread's elements; `warp` and `block` merge groups.
"""

from normlab.engine import cuda, float32


@cuda.jit(device=True)
def welford_step(value, mean, m2, count):
    """Add one value to the moments of a group (Welford 1962; apex: cuWelfordOnlineSum).

        mean' = mean + (value - mean) / count'        m2' = m2 + (value - mean) (value - mean')

    It subtracts the running mean from the value first, and that keeps digits. E[x²] - E[x]² subtracts two numbers near
    mean²: in float32 it has lost every digit of the variance once mean² / variance exceeds 2²⁴.

    Args: value, mean, m2, count: float32 or float64. Returns: the new (mean, m2, count).
    """
    count = count + float32(1)  # float32(1): float64 counts stay float64, float32 ones float32
    delta = value - mean
    mean = mean + delta / count
    # the old deviation times the new one: delta² would count the value's own pull on the mean as spread
    return mean, m2 + delta * (value - mean), count


@cuda.jit(device=True)
def chan_merge(mean_a, m2_a, count_a, mean_b, m2_b, count_b):
    """Merge the moments of two groups (Chan, Golub, LeVeque 1983; apex: cuChanOnlineSum).

        mean = mean_a + delta n_b / n        m2 = m2_a + m2_b + delta² n_a n_b / n        delta = mean_b - mean_a

    The mean is mean_a plus a correction; apex takes a weighted average. With a correction two groups of equal means
    merge to exactly that mean, so a constant row has variance 0 without a rounding error. Two empty groups give zeros.

    Args: (mean, m2, count) of a and of b: float32 or float64. Returns: merged (mean, m2, count).
    """
    count = count_a + count_b
    if count > 0:  # two empty groups would divide 0 by 0
        delta = mean_b - mean_a
        share_b = count_b / count
        mean = mean_a + delta * share_b
        m2 = m2_a + m2_b + delta * (delta * (count_a * share_b))  # delta² alone may overflow where b is empty
    else:
        mean = count  # 0 in the arguments' dtype: a bare 0 would change the variable's dtype
        m2 = count
    return mean, m2, count


@cuda.jit(device=True)
def chan_merge_share(mean_a, m2_a, count_a, mean_b, m2_b, share_b):
    """Merge the moments of two groups, given b's share n_b / n: one division may serve many pairs of groups.

    Returns: merged (mean, m2).
    """
    # a share of 0 for an empty group b leaves a's moments as they are
    delta = mean_b - mean_a
    return mean_a + delta * share_b, m2_a + m2_b + delta * (delta * (count_a * share_b))


@cuda.jit(device=True)
def chan_merge_value(mean, m2, count, value, share):
    """Add one value to the moments of a group, given the value's share 1 / (count + 1).

    Returns: the new (mean, m2).
    """
    # delta (delta ...) as in chan_merge: delta² alone may overflow
    delta = value - mean
    return mean + delta * share, m2 + delta * (delta * (count * share))


@cuda.jit(device=True)
def rms_step(value, square_sum):
    """Add one value's square to a sum of squares (apex: cuRMSOnlineSum)."""
    return square_sum + value * value


@cuda.jit(device=True)
def rms_merge(square_sum_a, square_sum_b):
    """Merge the sums of squares of two groups (apex: cuChanRMSOnlineSum)."""
    return square_sum_a + square_sum_b
