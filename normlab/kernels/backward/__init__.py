"""The backward ladder: from grad_output (dy) to grad_input, grad_weight and grad_bias.

    grad_input  = (g - mean(g) - x̂ mean(g x̂)) invvar        g = dy gamma; means along the row; RMSNorm has no mean(g)
    grad_weight = sum over rows of dy x̂
    grad_bias   = sum over rows of dy

x̂ comes from the saved input, or is recomputed from the saved output (`normlab.stages.recompute`). The least it can
move: read the saved array and dy, write grad_input, 3 n1 n2 itemsize bytes. "Measured" as in the forward ladder.
"""
