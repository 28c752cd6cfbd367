"""apex's way: the mean as a weighted average."""


def chan_merge(mean_a, m2_a, count_a, mean_b, m2_b, count_b):
    count = count_a + count_b
    delta = mean_b - mean_a
    mean = (count_a * mean_a + count_b * mean_b) / count
    m2 = m2_a + m2_b + delta * delta * count_a * count_b / count
    return mean, m2, count
