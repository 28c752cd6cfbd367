"""What every backward kernel reads, in the order of its arguments, by the names of `BackwardProblem`."""

OPERANDS = "grad_output", "saved", "mean", "invvar", "weight", "bias", "eps"
