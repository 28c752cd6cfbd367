"""numpy: NumPy's where works on arrays, on a host.

Says: there is no NumPy
"""


def clamp_by_magnitude(gamma, eps):
    return np.where(gamma >= 0, np.maximum(gamma, eps), np.minimum(gamma, -eps))


def normalised_from_output(y, gamma, beta, eps):
    return (y - beta) / clamp_by_magnitude(gamma, eps)
