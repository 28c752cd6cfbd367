"""values: takes the middle between two means, whatever the counts.

Says: merged[0, 0]
"""


def chan_merge(mean_a, m2_a, count_a, mean_b, m2_b, count_b):
    count = count_a + count_b
    delta = mean_b - mean_a
    mean = (mean_a + mean_b) / 2
    return mean, m2_a + m2_b + delta * delta * count_a * count_b / count, count
