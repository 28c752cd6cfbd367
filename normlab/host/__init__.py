"""The host layer for callers with arrays: the norms, the family, matrix products, checks and array backends."""
