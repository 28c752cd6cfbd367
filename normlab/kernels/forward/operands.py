"""The arguments of the forward kernels in their order, by the names of `ForwardProblem`."""

OPERANDS = "x", "weight", "bias", "eps", "output", "mean", "invvar"
FACTOR_OPERANDS = "x", "weight", "bias", "eps", "factor", "output", "mean", "invvar"  # factor: 1 / n2
RESIDUAL_OPERANDS = "x", "residual", "weight", "bias", "eps", "factor", "new_residual", "output", "mean", "invvar"
