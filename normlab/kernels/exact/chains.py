"""Give the lengths of a backward step's sums with the exact mode's kernels around it, for the error bounds."""

from normlab.kernels.exact import correct, repair
from normlab.kernels.plan import Chains, longest


def with_repairs(row: Chains, column: Chains, n1: int, capacity: int) -> tuple[Chains, Chains]:
    """Return a step's chains along a row and over n1 rows, with the additions for `capacity` kept columns."""
    terms, merges = longest(row, correct.row_chains(capacity))
    return Chains(terms + 1, merges), longest(column, repair.column_chains(n1))  # + 1: the step adds the correction
