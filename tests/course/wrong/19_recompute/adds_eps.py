"""values: moves every weight, and makes -eps a zero.

Says: clamped[
"""


def clamp_by_magnitude(gamma, eps):
    return gamma + eps


def normalised_from_output(y, gamma, beta, eps):
    return (y - beta) / clamp_by_magnitude(gamma, eps)
