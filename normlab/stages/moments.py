"""Mean and spread of values seen one at a time, and of two groups merged: what one thread knows.

The moments of a group are (mean, m2, count): m2 is the sum of squared deviations from the mean, so variance = m2 /
count. RMSNorm needs only the sum of squares. Called by `row` (one thread over its elements) and by `warp` and `block`
(merging).
"""

from normlab.engine import cuda, float32


@cuda.jit(device=True)
def welford_step(value, mean, m2, count):
    """Add one value to the moments of a group (Welford 1962; apex: cuWelfordOnlineSum).

        mean' = mean + (value - mean) / count'        m2' = m2 + (value - mean) (value - mean')

    Subtracting the running mean first is what keeps digits: E[x²] - E[x]² subtracts two numbers near mean², and has
    lost every digit of the variance once mean² / variance exceeds 2²⁴.

    Args: value, mean, m2, count: float32 or float64. Returns: the new (mean, m2, count).
    """
    count = count + float32(1)
    delta = value - mean
    mean = mean + delta / count
    return mean, m2 + delta * (value - mean), count


@cuda.jit(device=True)
def chan_merge(mean_a, m2_a, count_a, mean_b, m2_b, count_b):
    """Moments of two groups together (Chan, Golub, LeVeque 1983; apex: cuChanOnlineSum).

        mean = mean_a + delta n_b / n        m2 = m2_a + m2_b + delta² n_a n_b / n        delta = mean_b - mean_a

    Written as a correction of mean_a, not as apex's weighted average, so that two groups with equal means merge to
    exactly that mean: a constant row then has variance 0 and not some rounding's worth. Two empty groups give zeros.

    Args: (mean, m2, count) of a and of b: float32 or float64. Returns: merged (mean, m2, count).
    """
    count = count_a + count_b
    if count > 0:
        delta = mean_b - mean_a
        share_b = count_b / count
        mean = mean_a + delta * share_b
        m2 = m2_a + m2_b + delta * (delta * (count_a * share_b))  # delta² alone may overflow where b is empty
    else:
        mean = count  # 0, in the dtype of all six
        m2 = count
    return mean, m2, count


@cuda.jit(device=True)
def chan_merge_share(mean_a, m2_a, count_a, mean_b, m2_b, share_b):
    """`chan_merge` for who knows b's share n_b / n: a division that many pairs of groups may have in common.

    Returns: merged (mean, m2).
    """
    delta = mean_b - mean_a
    return mean_a + delta * share_b, m2_a + m2_b + delta * (delta * (count_a * share_b))


@cuda.jit(device=True)
def chan_merge_value(mean, m2, count, value, share):
    """`chan_merge_share` with a group of one value, whose share is 1 / (count + 1).

    Returns: the new (mean, m2).
    """
    delta = value - mean
    return mean + delta * share, m2 + delta * (delta * (count * share))


@cuda.jit(device=True)
def rms_step(value, square_sum):
    """Add one value's square to a sum of squares (apex: cuRMSOnlineSum)."""
    return square_sum + value * value


@cuda.jit(device=True)
def rms_merge(square_sum_a, square_sum_b):
    """Sum of squares of two groups together (apex: cuChanRMSOnlineSum)."""
    return square_sum_a + square_sum_b
