"""3 · A group with nothing in it."""


def merge(mean_a, m2_a, count_a, mean_b, m2_b, count_b):
    count = count_a + count_b
    # Your lines.
    if count == 0:
        return count, count, count
    delta = mean_b - mean_a
    share_b = count_b / count
    return mean_a + delta * share_b, m2_a + m2_b + delta * delta * count_a * share_b, count
