"""Describe the part of a kernel's arithmetic that decides its rounding: its formats, and the lengths of its sums.

The caller of a bound (a test, or `normlab compare`) knows the kernel and passes its `Arithmetic`. A plan knows its own
chains of additions, so a caller that has the plan uses `Arithmetic.of(plan.rows, plan.columns)`. A caller without a
plan takes the longest chains that the kernel may have.
"""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from normlab.oracle.floats import EXTENDED_ROUNDOFF, Extended, Format, float_format

Statistics = Literal["welford", "two_pass", "grouped", "merged", "sharded"]


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """Formats by name, and sums by shape: one thread adds `terms` in sequence, then a tree of `merges` levels follows.

    A kernel with 128 threads per row, each adding every 128th of 769 values, has `row_terms=7, row_merges=7`. A caller
    may give larger terms or merges than the kernel has: the bounds are then wider, but hold.

    Two Welford results are merged as mean_a + (mean_b - mean_a) (n_b / n). The bounds assume that n_a >= n_b, or that
    one side is empty. If the threads take the row's values in turn, that is so for thread 0's results in a rotation, a
    butterfly or a halving. With the sides swapped, the mean may be off by n_b / n_a times its bound
    (`moments.welford`).
    """

    input: str = "float32"
    """Storage of x, of the saved input, and of grad_input."""
    output: str = "float32"
    """Storage of the output."""
    parameter: str = "float32"
    """Storage of weight and bias, and of their gradients."""
    accumulator: str = "float32"
    """The format of all computations, and the storage of mean and invvar."""
    row_terms: int
    """The largest number of values of a row that one thread adds up."""
    row_merges: int
    """Levels of the tree that merges the threads' partial results of a row."""
    column_terms: int
    """The largest number of rows that one thread adds up for grad_weight and grad_bias."""
    column_merges: int
    """Levels of the tree that merges the threads' partial sums of a column."""
    statistics: Statistics = "welford"
    """The method for layer norm's variance, named as the function in `moments`. RMS norm just adds squares.

    "grouped" has one tree in every group (for example a warp) and one over the groups. "merged" has two passes in every
    group, then Chan's merges of the groups; each merge in a sequence counts as a level. For both methods `row_merges`
    counts the levels inside a group and over the groups. "sharded" has two passes in every shard, then a tree of Chan's
    merges (`merging`); `row_merges` counts the levels inside a shard and over the shards.
    """
    shards: tuple[int, ...] = ()
    """For "sharded": the number of columns of each rank, in the order of ranks."""

    def __post_init__(self) -> None:
        """Raise ValueError if a format or the method is unknown, or if a sum has no terms."""
        for name in (self.input, self.output, self.parameter, self.accumulator):
            float_format(name)
        if min(self.row_terms, self.column_terms) < 1 or min(self.row_merges, self.column_merges) < 0:
            raise ValueError(f"sums need at least one term and no fewer than 0 merges: {self}")
        if self.statistics not in get_args(Statistics):
            raise ValueError(f"statistics={self.statistics!r}: known are {', '.join(get_args(Statistics))}")
        if (self.statistics == "sharded") != bool(self.shards):
            raise ValueError(f"shards={self.shards} and statistics={self.statistics!r} do not go together")

    @classmethod
    def of(cls, rows: tuple[int, int], columns: tuple[int, int] | None = None, **others: Any) -> "Arithmetic":
        """Return the arithmetic of a plan by its own chains of additions, which give the tightest bounds.

        Args:
            rows, columns: (terms, merges) each, such as `plan.rows` and `plan.columns` of `normlab.kernels.Plan`.
                columns: None if there are no sums over rows, as in a forward.
            others: the other fields.

        >>> Arithmetic.of((7, 5), accumulator="float64").row_merges
        5
        """
        columns = columns or (1, 0)
        return cls(row_terms=rows[0], row_merges=rows[1], column_terms=columns[0], column_merges=columns[1], **others)

    @property
    def u_format(self) -> Format:
        """Return the accumulator's format, apex's type U."""
        return float_format(self.accumulator)

    @property
    def u(self) -> Extended:
        """Return the largest relative error of one operation: the kernel's rounding plus the oracle's own."""
        return Extended(self.u_format.unit_roundoff) + EXTENDED_ROUNDOFF

    @property
    def oracle_sum(self) -> float:
        """Return the oracle's own roundings per sum, in units of the kernel's: 64 of them."""
        # NumPy adds pairwise, so a sum of 2^40 terms is within 64 roundings
        return 64 * EXTENDED_ROUNDOFF / self.u_format.unit_roundoff

    @property
    def row_sum(self) -> float:
        """Return how many roundings a term of a sum along a row goes through."""
        return self.row_terms + self.row_merges + self.oracle_sum

    @property
    def column_sum(self) -> float:
        """Return how many roundings a term of a sum over rows goes through."""
        return self.column_terms + self.column_merges + self.oracle_sum
