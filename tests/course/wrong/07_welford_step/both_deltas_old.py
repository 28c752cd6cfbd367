"""values: squares the distance from the old mean, where one factor is the distance from the new one.

Says: variances[0]: expected 0, got 1
"""


def welford_step(value, mean, m2, count):
    count = count + float32(1)
    delta = value - mean
    return mean + delta / count, m2 + delta * delta, count
