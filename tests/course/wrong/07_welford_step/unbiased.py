"""values: counts from one less, as the unbiased variance does.

Says: smallest failing input
"""


def welford_step(value, mean, m2, count):
    delta = value - mean
    if count > float32(0):
        mean = mean + delta / count
    count = count + float32(1)
    return mean, m2 + delta * (value - mean), count
