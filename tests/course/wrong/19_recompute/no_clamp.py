"""values: divides by the weight as it is, zeros included.

Says: xhat[
"""


def clamp_by_magnitude(gamma, eps):
    if gamma >= 0:
        return max(gamma, eps)
    return min(gamma, -eps)


def normalised_from_output(y, gamma, beta, eps):
    return (y - beta) / gamma
