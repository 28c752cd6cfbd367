"""13 · Back from the output."""


def clamp_by_magnitude(gamma, eps):
    # Your lines.
    if gamma >= 0:
        return max(gamma, eps)
    return min(gamma, -eps)


def normalised_from_output(y, gamma, beta, eps):
    # Your lines.
    return (y - beta) / clamp_by_magnitude(gamma, eps)
