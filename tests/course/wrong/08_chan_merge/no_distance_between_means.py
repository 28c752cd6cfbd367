"""values: leaves out that the groups have different means.

Says: merged[1, 0]
"""


def chan_merge(mean_a, m2_a, count_a, mean_b, m2_b, count_b):
    count = count_a + count_b
    mean = mean_a + (mean_b - mean_a) * count_b / count
    return mean, m2_a + m2_b, count
