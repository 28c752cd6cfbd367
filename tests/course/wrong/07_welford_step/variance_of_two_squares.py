"""values: E[x²] - E[x]² has no digits left where the mean is far larger than the spread.

Says: offset values
"""


def welford_step(value, mean, m2, count):
    squares = m2 + count * mean * mean + value * value
    total = count * mean + value
    count = count + float32(1)
    mean = total / count
    return mean, squares - count * mean * mean, count
