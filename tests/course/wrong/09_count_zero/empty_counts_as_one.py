"""values: an empty group gets a count of 1, and keeps it."""


def merge(mean_a, m2_a, count_a, mean_b, m2_b, count_b):
    count = count_a + count_b
    count = max(count, float32(1))
    delta = mean_b - mean_a
    share_b = count_b / count
    return mean_a + delta * share_b, m2_a + m2_b + delta * delta * count_a * share_b, count
