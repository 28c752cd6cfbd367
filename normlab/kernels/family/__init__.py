"""Batch, instance and group norm: one formula over different index sets (`sets`), in three kernels per pass.

Forward: the first kernel writes the moments of pieces (`planes` or `columns`), the second merges them to those of sets
(`merge`), and the third computes every element.
Backward: the first kernel writes the sums of dy and dy x̂ over the same pieces. They are merged twice: times gamma over
each set, for grad_input, and without gamma over each channel, for grad_weight and grad_bias. Where the sets are the
channels, one merge gives both.

The second and third kernels start before the previous kernel has ended. A forward whose sets fit in a block is one
kernel (`rows`). Each pass of a batch norm that keeps all multiprocessors busy is one kernel, too (`fused`).
`normlab.host.family` calls `forward` and `gradients`; layer norm has ladders of its own.
"""

from normlab.kernels.family.columns import Columns
from normlab.kernels.family.fused import FusedPlan, launch_backward, launch_forward
from normlab.kernels.family.merge import launch_moments, launch_sums, merges
from normlab.kernels.family.operands import Gradients, Outputs
from normlab.kernels.family.planes import Planes
from normlab.kernels.family.rows import launch_rows, thread_map_for
from normlab.kernels.family.running import launch_update, launch_use
from normlab.kernels.family.sets import Sets
from normlab.kernels.plan import Chains, Device, longest, row_chains_of

__all__ = [
    "Columns",
    "Gradients",
    "Outputs",
    "Planes",
    "Sets",
    "chains",
    "forward",
    "gradients",
    "launch_update",
    "launch_use",
    "walk",
]


def walk(sets: Sets, *arrays, device: Device | None = None) -> Planes | Columns:
    """Return the walk for a view of x.

    arrays: all that are like x. device: the GPU; None: the one on which the arrays lie.
    """
    if sets.run > 1:
        return Planes(sets, *arrays)
    return Columns(sets, *arrays, device=Device.of(arrays[0]) if device is None else device)


def rows_forward(launch, memory, walked: Planes | Columns, one: Outputs) -> bool:
    """Queue one kernel that holds a set in a block's registers; return False if a set is no such row."""
    # `rows` does not keep the variance, which only running statistics need
    return one.variance is None and launch_rows(launch, one)


def fused_forward(launch, memory, walked: Planes | Columns, one: Outputs) -> bool:
    """Queue one kernel in which all multiprocessors exchange statistics; return False if the pass has no such plan."""
    # Planned with the walk: an image laid out otherwise than as columns has no such kernel.
    plan = plan_of(walked)
    if plan is not None:
        launch_forward(launch, memory, plan, one)
    return plan is not None


def pieces_forward(launch, memory, walked: Planes | Columns, one: Outputs) -> bool:
    """Queue three kernels, which do every image."""
    # Of each piece the mean, the m2 and the count.
    pieces = memory.empty((3, walked.pieces.size), one.mean.dtype)
    walked.launch_moments(launch, one.x, pieces)
    launch_moments(launch, pieces, walked.pieces, one.eps, one.mean, one.variance, one.invvar)
    walked.launch_output(launch, one.x, one.mean, one.invvar, one.weight, one.bias, one.output)
    return True


def fused_backward(launch, memory, walked: Planes | Columns, one: Gradients) -> bool:
    """Queue one kernel in which all multiprocessors exchange sums; return False if the pass has no such plan."""
    plan = plan_of(walked) if one.own else None  # with given statistics there is nothing to exchange for grad_input
    if plan is not None:
        launch_backward(launch, memory, plan, one)
    return plan is not None


def pieces_backward(launch, memory, walked: Planes | Columns, one: Gradients) -> bool:
    """Queue up to four kernels, which do every image."""
    sets, shape = walked.sets, walked.pieces
    wanted = one.grad_weight is not None or one.grad_bias is not None
    mean_g = mean_gx = None
    # Without these, grad_input is g invvar, and no sum of a set or a channel is needed.
    if one.own or wanted:
        pieces = memory.empty((2, shape.size), one.mean.dtype)
        walked.launch_sums(launch, one.grad_output, one.x, one.mean, one.invvar, pieces)
        channels = shape.by_channel()
        if one.own:
            mean_g, mean_gx = (memory.empty((sets.total,), one.mean.dtype) for _ in range(2))
            # in batch norm each set is a channel, so the same merge gives the parameters' gradients
            totals = (one.grad_bias, one.grad_weight) if shape == channels else None
            launch_sums(launch, pieces, shape, one.weight, sets.values, mean_g, mean_gx, totals)
        if (shape != channels or not one.own) and wanted:
            launch_sums(launch, pieces, channels, None, 1, one.grad_bias, one.grad_weight)
    walked.launch_gradient(launch, one, mean_g, mean_gx)
    return True


# The first way that does an image does it: x is read once in `rows`, mostly once in `fused`, and twice in `pieces`.
FORWARD_WAYS = rows_forward, fused_forward, pieces_forward
BACKWARD_WAYS = fused_backward, pieces_backward


def forward(launch, memory, walked: Planes | Columns, one: Outputs):
    """Queue the kernels of a forward pass."""
    # `any` stops at the first way that has queued its kernels; those before it have queued nothing.
    any(way(launch, memory, walked, one) for way in FORWARD_WAYS)


def gradients(launch, memory, walked: Planes | Columns, one: Gradients):
    """Queue the kernels of a backward pass."""
    any(way(launch, memory, walked, one) for way in BACKWARD_WAYS)


def plan_of(walked: Planes | Columns) -> FusedPlan | None:
    """Return the plan of the only kernel of a pass, or None if a pass has several kernels."""
    return walked.fused if isinstance(walked, Columns) else None


def chains(walked: Planes | Columns) -> tuple[Chains, Chains]:
    """Return the longest chains of additions over a set, and over a channel.

    They are for `oracle.Arithmetic` with statistics "merged". The chains of pieces and their merges hold for the two
    passes of `rows`, too.
    """
    over_set, over_channel = (
        Chains(shape.terms + 1, shape.levels + merges(shape)) for shape in (walked.pieces, walked.pieces.by_channel())
    )
    thread_map, fused = thread_map_for(walked.sets, walked.width), plan_of(walked)
    if fused is not None:
        return fused.chains, fused.chains
    # `rows` leaves a forward with running statistics to the pieces, which this function does not know: both ways count.
    return over_set if thread_map is None else longest(over_set, row_chains_of(thread_map)), over_channel
