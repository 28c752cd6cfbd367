"""Norms of x + residual for PyTorch, in one call that returns the output and the sum, and norms with an offset."""
