"""values: neither above nor below 0, so nothing happens to 0."""


def clamp_by_magnitude(gamma, eps):
    if gamma > 0:
        return max(gamma, eps)
    if gamma < 0:
        return min(gamma, -eps)
    return gamma


def normalised_from_output(y, gamma, beta, eps):
    return (y - beta) / clamp_by_magnitude(gamma, eps)
