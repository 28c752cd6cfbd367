"""values: -0 has a sign bit, but is not below 0.

Says: clamped[1]
"""

import math


def clamp_by_magnitude(gamma, eps):
    return math.copysign(max(abs(gamma), eps), gamma)


def normalised_from_output(y, gamma, beta, eps):
    return (y - beta) / clamp_by_magnitude(gamma, eps)
