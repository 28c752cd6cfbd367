"""How a kernel computes, as far as its rounding depends on it: formats, and how long its sums are.

Given to the bounds by whoever knows the kernel (a test, `normlab compare`).
"""

from dataclasses import dataclass
from typing import Literal, get_args

from normlab.oracle.floats import EXTENDED_ROUNDOFF, Extended, Format, float_format

Statistics = Literal["welford", "two_pass", "grouped", "merged"]


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """Formats by name, sums by their shape: `terms` are added one after another, then `merges` levels of a tree follow.

    A kernel of 128 threads a row, each adding every 128th of 769 values, has `row_terms=7, row_merges=7`.
    Numbers that are too large only make the bounds wider.

    A merge of two Welford results, mean_a + (mean_b - mean_a) (n_b / n), is assumed to have the side that counts more
    values, or an empty one, as `a`: so it is on the way to thread 0 in a rotation, a butterfly or a halving of a row
    that was dealt out in turn. The other way round, the mean may be off by n_b / n_a times its bound
    (`moments.welford`).
    """

    input: str = "float32"
    """Storage of x, of the saved input, and of grad_input."""
    output: str = "float32"
    """Storage of the output."""
    parameter: str = "float32"
    """Storage of weight and bias, and of their gradients."""
    accumulator: str = "float32"
    """What everything is computed in; mean and invvar are stored in it."""
    row_terms: int
    """Most values of a row that one thread adds up."""
    row_merges: int
    """Levels of the tree that merges the threads' partial results of a row."""
    column_terms: int
    """Most rows that one thread adds up for grad_weight and grad_bias."""
    column_merges: int
    """Levels of the tree that merges those."""
    statistics: Statistics = "welford"
    """How layer norm's variance is computed: the functions of these names in `moments`. RMS norm just adds squares.

    "grouped" is a tree in every group (a warp, say) and one over the groups: `row_merges` counts the levels of both.
    "merged" is two passes in every group, and Chan's merges of the groups: `row_merges` counts the levels of both; a
    merge after another one is a level.
    """

    def __post_init__(self) -> None:
        """ValueError for a format that nobody knows, or for sums of no terms."""
        for name in (self.input, self.output, self.parameter, self.accumulator):
            float_format(name)
        if min(self.row_terms, self.column_terms) < 1 or min(self.row_merges, self.column_merges) < 0:
            raise ValueError(f"sums need at least one term and no fewer than 0 merges: {self}")
        if self.statistics not in get_args(Statistics):
            raise ValueError(f"statistics={self.statistics!r}: known are {', '.join(get_args(Statistics))}")

    @property
    def u_format(self) -> Format:
        """The accumulator's format, apex's type U."""
        return float_format(self.accumulator)

    @property
    def u(self) -> Extended:
        """What one operation may cost, relatively: the kernel's rounding and the oracle's own."""
        return Extended(self.u_format.unit_roundoff) + EXTENDED_ROUNDOFF

    @property
    def oracle_sum(self) -> float:
        """Roundings of the oracle's own pairwise sums, counted in the kernel's: 64 are enough for 2^40 terms."""
        return 64 * EXTENDED_ROUNDOFF / self.u_format.unit_roundoff

    @property
    def row_sum(self) -> float:
        """Roundings that a term of a sum along a row goes through."""
        return self.row_terms + self.row_merges + self.oracle_sum

    @property
    def column_sum(self) -> float:
        """Roundings that a term of a sum over rows goes through."""
        return self.column_terms + self.column_merges + self.oracle_sum
