"""Branches in place of max and min, and a product with 1 / gamma."""


def clamp_by_magnitude(gamma, eps):
    if 0 <= gamma < eps:
        return eps
    if -eps < gamma < 0:
        return -eps
    return gamma


def normalised_from_output(y, gamma, beta, eps):
    inverse = 1 / clamp_by_magnitude(gamma, eps)
    return (y - beta) * inverse
