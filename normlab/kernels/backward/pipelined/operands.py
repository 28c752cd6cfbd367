"""Name what the phases of the pipelined backward hand to each other.

A whole kernel takes its arrays one by one, because a launch has no NamedTuple among its arguments. Inside the kernel a
NamedTuple costs nothing: the compiler takes it apart, and registers and bits are those of separate arguments.

An absent array is None in them. No phase may ask `weight is not None` of a member, because the compiler drops such a
branch only for an argument; the phases ask the kernel's `Kind`, whose fields are constants.
"""

from typing import Any, NamedTuple


class Operands(NamedTuple):
    """The kernel's arrays in global memory, and its scalars. mean_factor: 1 / n2."""

    grad_output: Any
    saved: Any
    mean: Any
    invvar: Any
    weight: Any
    bias: Any
    eps: Any
    mean_factor: Any
    grad_input: Any


class Gradients(NamedTuple):
    """The parameters' gradients, and the clusters' partial sums of them."""

    grad_weight: Any
    grad_bias: Any
    part_weight: Any
    part_bias: Any


class Memory(NamedTuple):
    """The block's shared memory: pipeline stages of both arrays and parameters, as bits, and the exchange buffer.

    The first three are the same dynamic shared memory in three dtypes; offsets tell them apart (`layout`).
    """

    saved_stages: Any
    grad_stages: Any  # from `Layout.grads_at` on
    parameters: Any  # from `Layout.parameters_at` on
    exchange: Any  # (2 phases, row groups, 2 sums, warps)


class Share(NamedTuple):
    """What a thread works on: the same columns of each row that its row group takes.

    thread, warp: its index, and its warp's, in the row group. group: the row group's index in the block. offset: of its
    first column in the block's slice of a row. first: that column in the row. cluster: the cluster's index. top: the
    first row of the block's first row group; the others have the rows after it. stride: rows from turn to turn.
    """

    thread: Any
    warp: Any
    group: Any
    offset: Any
    first: Any
    cluster: Any
    top: Any
    stride: Any


class Row(NamedTuple):
    """A row at work: its number, the offset of the thread's share in the pipeline stages, its mean and invvar."""

    number: Any
    at: Any
    center: Any
    scale: Any


class Sums(NamedTuple):
    """The thread's sums of its columns, in registers from the first row to the last: for grad_weight and grad_bias."""

    weight: Any
    bias: Any
