"""numpy: lets NumPy compute the mean.

Says: there is no NumPy
"""


def chan_merge(mean_a, m2_a, count_a, mean_b, m2_b, count_b):
    count = count_a + count_b
    delta = mean_b - mean_a
    mean = np.average((mean_a, mean_b), weights=(count_a, count_b))
    return mean, m2_a + m2_b + delta * delta * count_a * count_b / count, count
