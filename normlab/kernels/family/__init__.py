"""Batch, instance and group norm: one formula over different index sets (`sets`), in three kernels a pass.

Forward: moments of pieces (`planes` or `columns`), merged to those of sets (`merge`), then every element on its own.
Backward: sums of dy and dy x̂ over the same pieces, merged twice: times gamma over each set, for grad_input, and as they
are over each channel, for grad_weight and grad_bias; at once where the sets are the channels. A forward whose sets fit
in a block is one kernel (`rows`), and so is each pass of a batch norm that all multiprocessors hold (`together`). The
second and third kernels begin before the one ahead has ended.
`normlab.host.family` calls them; layer norm has ladders of its own.
"""

from normlab.kernels.family.columns import Columns
from normlab.kernels.family.merge import launch_moments, launch_sums, merges
from normlab.kernels.family.planes import Planes
from normlab.kernels.family.rows import chains as row_chains
from normlab.kernels.family.rows import deal_for, launch_rows
from normlab.kernels.family.running import launch_update, launch_use
from normlab.kernels.family.sets import Sets
from normlab.kernels.family.together import Plan, launch_backward, launch_forward
from normlab.kernels.plan import Chains, longest

__all__ = ["Columns", "Planes", "Sets", "chains", "forward", "gradients", "launch_update", "launch_use", "walk"]


def walk(sets: Sets, *arrays) -> Planes | Columns:
    """The walk for a view of x; arrays: all that are like x."""
    return Columns(sets, *arrays) if sets.run == 1 else Planes(sets, *arrays)


def forward(launch, memory, walked: Planes | Columns, x, weight, bias, eps, mean, variance, invvar, output):
    """output, and mean, invvar and variance (unbiased; or None) of every set: (sets.total,), accumulator dtype."""
    if variance is None and launch_rows(launch, walked.sets, x, weight, bias, eps, mean, invvar, output):
        return
    together = plan_of(walked)
    if together is not None:
        statistics = mean, variance, invvar
        launch_forward(launch, memory, together, walked.width, x, weight, bias, eps, *statistics, output)
        return
    pieces = memory.empty((3, walked.pieces.size), mean.dtype)
    walked.launch_moments(launch, x, pieces)
    launch_moments(launch, pieces, walked.pieces, eps, mean, variance, invvar)
    walked.launch_output(launch, x, mean, invvar, weight, bias, output)


def gradients(
    launch, memory, walked: Planes | Columns, grad_output, x, mean, invvar, weight, own, grad_input, grad_weight,
    grad_bias,
):  # fmt: skip
    """All gradients; grad_weight and grad_bias may be None. `own`: the statistics are those of x itself."""
    sets, shape = walked.sets, walked.pieces
    together = plan_of(walked)
    if own and together is not None:
        wanted = grad_input, grad_weight, grad_bias
        launch_backward(launch, memory, together, walked.width, grad_output, x, mean, invvar, weight, *wanted)
        return
    mean_g = mean_gx = None
    if own or grad_weight is not None or grad_bias is not None:
        pieces = memory.empty((2, shape.size), mean.dtype)
        walked.launch_sums(launch, grad_output, x, mean, invvar, pieces)
        channels = shape.by_channel()
        if own:
            mean_g, mean_gx = (memory.empty((sets.total,), mean.dtype) for _ in range(2))
            totals = (grad_bias, grad_weight) if shape == channels else None
            launch_sums(launch, pieces, shape, weight, sets.values, mean_g, mean_gx, totals)
        if (shape != channels or not own) and (grad_weight is not None or grad_bias is not None):
            launch_sums(launch, pieces, channels, None, 1, grad_bias, grad_weight)
    walked.launch_gradient(launch, grad_output, x, mean, invvar, weight, mean_g, mean_gx, grad_input)


def plan_of(walked: Planes | Columns) -> Plan | None:
    """How all of a pass is one kernel; None: it is not."""
    return walked.together if isinstance(walked, Columns) else None


def chains(walked: Planes | Columns) -> tuple[Chains, Chains]:
    """The longest chains of additions over a set, and over a channel; `oracle.Arithmetic` with statistics "merged".

    Of all kernels: what holds for pieces and their merges holds for the two passes of `rows`, too.
    """
    over_set, over_channel = (
        Chains(shape.terms + 1, shape.levels + merges(shape)) for shape in (walked.pieces, walked.pieces.by_channel())
    )
    deal, together = deal_for(walked.sets, walked.width), plan_of(walked)
    if together is not None:
        return together.chains, together.chains
    return over_set if deal is None else longest(over_set, row_chains(deal)), over_channel
