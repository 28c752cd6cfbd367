"""LayerNorm modulated by a scale and a shift per sample for PyTorch, in one call."""
