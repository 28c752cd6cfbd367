"""1 · One more value: Welford's step."""


def welford_step(value, mean, m2, count):
    # Your lines.
    count = count + float32(1)
    delta = value - mean
    mean = mean + delta / count
    return mean, m2 + delta * (value - mean), count
