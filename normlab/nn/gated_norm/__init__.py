"""RMSNorm with a gate for PyTorch, silu(z) times the norm's output or its input, in one call."""
