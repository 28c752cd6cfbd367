"""What a caller with arrays meets: the norms, the family, matrix products, and what checks and carries their
arguments."""
