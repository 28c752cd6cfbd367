"""Name what the phases of the cluster kernel hand to each other. A NamedTuple costs nothing: the compiler splits it.

x, weight, bias and mean are separate arguments of the phases. Some of them may be None, and `ClusterLayout` does not
say which. The compiler drops a branch such as `weight is not None` only if weight is an argument, not a tuple's member.
"""

from typing import Any, NamedTuple


class Memory(NamedTuple):
    """The block's shared memory (its part of row and parameters, the exchange buffer), and the thread's `kept`.

    held, parameters and words are the same dynamic shared memory: bits of x, bits of a parameter, and words of 32 bits.
    """

    held: Any  # the block's part of the row: `ClusterLayout.held_columns` elements of x
    parameters: Any  # after the row's part: gamma, then beta, of the same columns
    words: Any
    kept: Any  # local, words: the thread's part of the row as it lies in memory, if registers keep it
    exchange: Any  # (2 phases, 1 row, 2 sums, warps)


class Share(NamedTuple):
    """What a thread works on: the same columns of each row that its cluster takes."""

    rank: Any  # the block's number in its cluster
    reader: Any  # which of the row's readers the cluster is
    warp: Any  # the warp's number in the block
    offset: Any  # where the thread's first vector of the row lies in `Memory.held`
    gammas_at: Any  # where the thread's first vector of gamma lies in `Memory.parameters`
    betas_at: Any  # the same for beta
    first: Any  # the column of the thread's first vector in a row that begins with a vector
    stride: Any  # the number of rows from one of the cluster's rows to its next


class Place(NamedTuple):
    """Where a thread's vectors of a row lie. Only `first` and `extent` are used where rows begin with a vector."""

    first: Any  # the column of the first one; negative if it begins before the row
    extent: Any  # n2, or (elements of the row before, n2), as `stages.grouped.group_size` takes it
    left: Any  # columns from the first one on to the row's end
    begin: Any  # the index of the first one in the matrix
    limit: Any  # a vector that begins less than `limit` elements after the first touches the row and ends in the matrix
    inner: Any  # True if all elements of all vectors of the warp are the row's


class Row(NamedTuple):
    """The row that a cluster works on: its number, the number of the cluster's next row, its mean and its invvar.

    center: the mean, 0 in RMSNorm. scale: invvar.
    """

    number: Any
    following: Any
    center: Any
    scale: Any
