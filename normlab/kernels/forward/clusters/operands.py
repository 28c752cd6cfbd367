"""Name what the phases of the cluster kernel hand to each other. The compiler takes each NamedTuple apart.

x, weight, bias and mean stay arguments of their own: a kernel is built without knowing which of them are None, and the
compiler drops a branch `weight is not None` only for an argument.
"""

from typing import Any, NamedTuple


class Memory(NamedTuple):
    """The block's shared memory: its part of the row and of the parameters, as bits, and the exchange buffer.

    held and parameters are the same dynamic shared memory in two dtypes.
    """

    held: Any
    parameters: Any  # after the row's `held_columns`: gamma, then beta
    exchange: Any  # (2 phases, 1, 2 sums, warps)


class Share(NamedTuple):
    """What a thread works on: the same columns of each row that its cluster takes.

    rank: the block's, in its cluster. reader: which of the row's readers the cluster is. warp: in the block.
    offset, gammas_at, betas_at: of the thread's first vector of the row, of gamma and of beta in shared memory.
    first: its column in the row. stride: rows from turn to turn.
    """

    rank: Any
    reader: Any
    warp: Any
    offset: Any
    gammas_at: Any
    betas_at: Any
    first: Any
    stride: Any


class Row(NamedTuple):
    """A row at work: its number, the cluster's next row, its mean (0 in RMSNorm) and invvar."""

    number: Any
    following: Any
    center: Any
    scale: Any
