"""values: a small negative weight becomes a positive one."""


def clamp_by_magnitude(gamma, eps):
    return max(abs(gamma), eps)


def normalised_from_output(y, gamma, beta, eps):
    return (y - beta) / clamp_by_magnitude(gamma, eps)
