"""exception: the three new numbers never leave the function.

Says: NoneType
"""


def welford_step(value, mean, m2, count):
    count = count + float32(1)
    mean = mean + (value - mean) / count
