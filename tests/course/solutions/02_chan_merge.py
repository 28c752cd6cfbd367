"""2 · Two groups become one: Chan's merge."""


def chan_merge(mean_a, m2_a, count_a, mean_b, m2_b, count_b):
    # Your lines.
    count = count_a + count_b
    share_b = count_b / count
    delta = mean_b - mean_a
    return mean_a + delta * share_b, m2_a + m2_b + delta * delta * count_a * share_b, count
