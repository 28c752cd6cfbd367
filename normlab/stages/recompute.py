"""Apply gamma and beta to one element, y = gamma x̂ + beta, and recover x̂ from the saved input or output.

apex's `memory_efficient` saves the output instead of the input, because the next layer keeps y anyway. It costs
accuracy: y is stored rounded, so the recovered x̂ has an error of about u_out (|beta| + |gamma x̂|) / |gamma|
(`normlab.oracle.recompute_error`). The error is large where |gamma| is small.

weight, bias and mean may be None and then count as 1, 0 and 0. The compiler drops the branches of absent arguments.
"""

from normlab.engine import cuda, load


@cuda.jit(device=True)
def element(array, index):
    """Return `array[index]` in accumulator precision, or None if the array is None."""
    if array is not None:
        return load(array, index)
    return None


@cuda.jit(device=True)
def affine(normalised, gamma, beta):
    """Return y = gamma x̂ + beta."""
    if gamma is not None:  # decided when the kernel is compiled, not when it runs
        normalised = normalised * gamma
    if beta is not None:
        normalised = normalised + beta
    return normalised


@cuda.jit(device=True)
def normalised_from_input(value, mean, invvar):
    """Return x̂ = (x - mean) invvar; a mean of None stands for RMSNorm."""
    if mean is not None:
        value = value - mean
    return value * invvar  # subtracted first: x invvar - mean invvar would lose digits where mean is large


@cuda.jit(device=True)
def without_bias(value, beta):
    """Return y - beta, which is gamma x̂."""
    if beta is not None:
        value = value - beta
    return value


@cuda.jit(device=True)
def normalised_from_output(value, gamma, beta, eps):
    """Return x̂ = (y - beta) / gamma, with gamma clamped out of (-eps, eps)."""
    value = without_bias(value, beta)
    if gamma is not None:  # clamped, because y holds nothing of x̂ where gamma is 0
        value = value / clamp_by_magnitude(gamma, eps)
    return value


@cuda.jit(device=True)
def clamp_by_magnitude(gamma, eps):
    """Return gamma, or ±eps with gamma's sign where |gamma| < eps (apex: clamp_by_magnitude). 0 and -0 become +eps."""
    least = eps if gamma >= 0 else -eps  # -0 >= 0 is true, so -0 becomes +eps
    return least if abs(gamma) < eps else gamma  # NaN < eps is false, so NaN stays NaN


@cuda.jit(device=True)
def normalised(saved, row, column, mean, invvar, weight, bias, eps, memory_efficient):
    """Return x̂ at (row, column) from the array that the forward saved: its output if memory_efficient, else its input.

    saved: (n1, n2); mean, invvar: (n1,), accumulator dtype; weight, bias: (n2,); eps: accumulator dtype.
    """
    value = load(saved, (row, column))
    if memory_efficient:  # a constant of the kernel: the compiler keeps one of the two returns
        return normalised_from_output(value, element(weight, column), element(bias, column), eps)
    return normalised_from_input(value, element(mean, row), load(invvar, row))
