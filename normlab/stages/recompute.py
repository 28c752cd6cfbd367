"""One element, there and back: y = gamma x̂ + beta, and x̂ from the saved input or the saved output.

Saving the output instead of the input is apex's `memory_efficient`: the next layer keeps y anyway. It costs accuracy:
y is stored rounded, so x̂ comes back with an error of about u_out (|beta| + |gamma x̂|) / |gamma|
(`normlab.oracle.recompute_error`), which is small until |gamma| is.

weight, bias and mean may be None: 1, 0 and 0. The compiler drops the branches of what is absent.
"""

from normlab.engine import cuda, load


@cuda.jit(device=True)
def element(array, index):
    """`array[index]` in accumulator precision, or None where there is no array."""
    if array is not None:
        return load(array, index)
    return None


@cuda.jit(device=True)
def affine(normalised, gamma, beta):
    """y = gamma x̂ + beta."""
    if gamma is not None:
        normalised = normalised * gamma
    if beta is not None:
        normalised = normalised + beta
    return normalised


@cuda.jit(device=True)
def normalised_from_input(value, mean, invvar):
    """x̂ = (x - mean) invvar."""
    if mean is not None:
        value = value - mean
    return value * invvar


@cuda.jit(device=True)
def without_bias(value, beta):
    """y - beta = gamma x̂."""
    if beta is not None:
        value = value - beta
    return value


@cuda.jit(device=True)
def normalised_from_output(value, gamma, beta, eps):
    """x̂ = (y - beta) / gamma, with gamma pushed out of (-eps, eps)."""
    value = without_bias(value, beta)
    if gamma is not None:
        value = value / clamp_by_magnitude(gamma, eps)
    return value


@cuda.jit(device=True)
def clamp_by_magnitude(gamma, eps):
    """gamma, but at least eps away from 0, on the side it was (apex: clamp_by_magnitude). 0, also -0, becomes +eps."""
    least = eps if gamma >= 0 else -eps
    return least if abs(gamma) < eps else gamma  # NaN, too, stays what it is


@cuda.jit(device=True)
def normalised(saved, row, column, mean, invvar, weight, bias, eps, memory_efficient):
    """x̂ at (row, column) of what the forward saved: its output if memory_efficient, else its input.

    saved: (n1, n2); mean, invvar: (n1,), accumulator dtype; weight, bias: (n2,); eps: accumulator dtype.
    """
    value = load(saved, (row, column))
    if memory_efficient:
        return normalised_from_output(value, element(weight, column), element(bias, column), eps)
    return normalised_from_input(value, element(mean, row), load(invvar, row))
