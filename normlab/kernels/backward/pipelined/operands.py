"""Name what the phases of the pipelined backward hand to each other.

A whole kernel takes its arrays one by one, because a launch has no NamedTuple among its arguments. Inside the kernel a
NamedTuple costs nothing: the compiler takes it apart, and registers and bits are those of separate arguments.

An absent array is None in them. A phase does not ask `operands.weight is not None`, because the compiler drops such a
branch only for an argument, not for a tuple's member. It asks the kernel's `Kind`, whose fields are constants.
"""

from typing import Any, NamedTuple


class Operands(NamedTuple):
    """The kernel's arrays in global memory, and its scalars. mean_factor: 1 / n2. Others: see the problem."""

    grad_output: Any
    saved: Any
    mean: Any
    invvar: Any
    weight: Any
    bias: Any
    eps: Any
    mean_factor: Any
    grad_residual: Any
    gate: Any
    grad_input: Any
    grad_gate: Any


class Gradients(NamedTuple):
    """The parameters' gradients, and the clusters' partial sums of them."""

    grad_weight: Any
    grad_bias: Any
    part_weight: Any
    part_bias: Any


class Memory(NamedTuple):
    """The block's shared memory: pipeline stages of the arrays and parameters, as bits, and the exchange buffer.

    The first three are the same dynamic shared memory in three dtypes; offsets tell them apart (`layout`).
    """

    saved_stages: Any  # from `PipelineLayout.thirds_at` on those of the third array
    grad_stages: Any  # from `PipelineLayout.grads_at` on
    parameters: Any  # from `PipelineLayout.parameters_at` on
    exchange: Any  # (2 phases, row groups, 2 sums, warps)
    kept: Any  # not shared: registers for what the first pass over a gated row leaves to the second (`gated`)


class Share(NamedTuple):
    """What a thread works on: the same columns of each row that its row group takes."""

    thread: Any  # the thread's index in its row group
    warp: Any  # the warp's index in the row group
    group: Any  # the row group's index in the block
    offset: Any  # the thread's first column, counted from the block's slice of the row
    first: Any  # the same column, counted from the row's beginning; below 0 if the row begins within the vector
    line: Any  # of the partial sums, in which the cluster's sums go: its index in the grid, or see `prologue`
    top: Any  # the row of row group 0 in the first turn; row group k has row top + k * `PipelineLayout.alignments`
    stride: Any  # rows from one turn to the next
    end: Any  # the number of rows, or a row before which the cluster ends


class Row(NamedTuple):
    """The row that a row group works on. Its number may be `Share.end` or more: then there is no row in this turn."""

    number: Any
    at: Any  # the offset of the thread's first element of the row in the pipeline stages of either array
    center: Any  # its mean, 0 if the kernel needs none
    scale: Any  # its invvar


class Sums(NamedTuple):
    """The thread's sums of its columns, in registers from the first row to the last: for grad_weight and grad_bias."""

    weight: Any
    bias: Any
