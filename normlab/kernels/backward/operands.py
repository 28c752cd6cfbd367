"""What every backward kernel reads, in the order of its arguments, by the names of `BackwardProblem`."""

ARRAYS = "grad_output", "saved", "mean", "invvar", "weight", "bias"
OPERANDS = *ARRAYS, "eps"  # eps is read where x̂ is divided by gamma
