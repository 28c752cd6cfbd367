"""The arguments of the forward kernels in their order, by the names of `ForwardProblem`."""

OPERANDS = "x", "weight", "bias", "eps", "output", "mean", "invvar"
FACTOR_OPERANDS = "x", "weight", "bias", "eps", "factor", "output", "mean", "invvar"  # factor: 1 / n2
ROWS = "x", "residual", "gate"
ROW_OPERANDS = *ROWS, "weight", "bias", "eps", "factor", "new_residual", "output", "mean", "invvar"
