"""values: where one group is empty, so is the result.

Says: columns = 1
"""


def merge(mean_a, m2_a, count_a, mean_b, m2_b, count_b):
    count = count_a + count_b
    if count_a == 0 or count_b == 0:
        return float32(0), float32(0), float32(0)
    delta = mean_b - mean_a
    share_b = count_b / count
    return mean_a + delta * share_b, m2_a + m2_b + delta * delta * count_a * share_b, count
