"""The mean as a weighted share, m2 by both distances."""


def welford_step(value, mean, m2, count):
    new_count = count + 1
    old_distance = value - mean
    new_mean = mean + old_distance / new_count
    new_distance = value - new_mean
    return new_mean, m2 + old_distance * new_distance, new_count
