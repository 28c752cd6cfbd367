"""Describe the index sets of the family as they lie in memory.

Every norm sees its input as (batches, outer, sets, channels, run), where a set (b, s) is all of x[b, :, s, :, :], and a
parameter has an element for each (s, channel), that is, for each channel of x:

                  batches  outer  sets  channels  run
    batch           1        N      C      1        L        N C L: samples, channels, values of a plane
    instance        N        1      C      1        L
    group           N        1      G     C/G       L
    batch           1       N L     C      1        1        channels last
    instance        N        L      C      1        1        channels last
    group           N        L      G     C/G       1        channels last

Two walks cover them all. Where a run is long, lanes take neighbouring values of it (`planes`); where it is 1, they take
neighbouring channels (`columns`). Both walks write the moments, or the sums, of pieces of single channels, and `merge`
merges the pieces of each set. The norms differ only in which pieces a set has.
"""

from math import prod
from typing import NamedTuple


class Sets(NamedTuple):
    """The view of x as (batches, outer, sets, channels, run)."""

    batches: int
    outer: int
    sets: int
    channels: int
    run: int

    @property
    def total(self) -> int:
        """Return the number of sets."""
        return self.batches * self.sets

    @property
    def values(self) -> int:
        """Return the number of values per set."""
        # Not times batches and sets, which say how many sets there are.
        return self.outer * self.channels * self.run

    @property
    def parameters(self) -> int:
        """Return the number of elements of a parameter: x's channels."""
        return self.sets * self.channels

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return the three dimensions in which kernels take x and all arrays like it."""
        if self.run == 1:  # `columns` needs the batches apart, `planes` the runs
            return self.batches, self.outer, self.parameters
        # In both shapes the last dimension is the one whose neighbours lanes take as vectors.
        return self.batches * self.outer, self.parameters, self.run


def sets_of(norm: str, shape: tuple[int, ...], groups: int, channels_last: bool) -> Sets:
    """Return the index sets of a norm of an image (N, C, *spatial); groups: those of group norm."""
    n, c, *spatial = shape
    # With channels last a channel's values lie a whole pixel apart: they are rows of a matrix, and a run has one value.
    across, run = (prod(spatial), 1) if channels_last else (1, prod(spatial))
    # Batch norm has one mean over all samples, so the samples are further rows of a single batch.
    batches, outer = (1, n * across) if norm == "batch" else (n, across)
    sets = groups if norm == "group" else c
    # An image without channels has no sets among which they could be divided.
    return Sets(batches, outer, sets, c // max(sets, 1), run)


class Pieces(NamedTuple):
    """The shape of the pieces that the first kernel of a pass writes for `merge`: (…, batches, outer, sets x inner).

    outer: pieces per channel and batch that lie `sets * inner` apart. slices: pieces per channel that lie side by side.
    inner: pieces per set that lie side by side, which are its channels' slices. terms, levels: the additions that a
    piece's sums have gone through.
    """

    batches: int
    outer: int
    sets: int
    inner: int
    slices: int
    terms: int
    levels: int

    @property
    def size(self) -> int:
        """Return the number of pieces."""
        return self.batches * self.outer * self.sets * self.inner

    @property
    def items(self) -> int:
        """Return the number of pieces per set."""
        return self.outer * self.inner

    def by_channel(self) -> "Pieces":
        """Return the same pieces for sums over all values of a channel, which are batch norm's index sets."""
        # the pieces stay where they are: batches and outer are neighbouring dimensions, sets and channels, too
        channels = self.sets * self.inner // self.slices
        return self._replace(batches=1, outer=self.batches * self.outer, sets=channels, inner=self.slices)
