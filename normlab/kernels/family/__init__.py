"""Batch, instance and group norm: one formula over different index sets (`sets`), in three kernels a pass.

Forward: moments of pieces (`planes` or `columns`), merged to those of sets (`merge`), then every element on its own.
Backward: sums of dy and dy x̂ over the same pieces, merged twice: times gamma over each set, for grad_input, and as they
are over each channel, for grad_weight and grad_bias; at once where the sets are the channels. A forward whose sets fit
in a block is one kernel (`rows`), and so is each pass of a batch norm that all multiprocessors hold (`together`). The
second and third kernels begin before the one ahead has ended.
`normlab.host.family` calls them; layer norm has ladders of its own.
"""

from dataclasses import dataclass
from typing import Any

from normlab.kernels.family.columns import Columns
from normlab.kernels.family.merge import launch_moments, launch_sums, merges
from normlab.kernels.family.planes import Planes
from normlab.kernels.family.rows import chains as row_chains
from normlab.kernels.family.rows import launch_rows, thread_map_for
from normlab.kernels.family.running import launch_update, launch_use
from normlab.kernels.family.sets import Sets
from normlab.kernels.family.together import Plan, launch_backward, launch_forward
from normlab.kernels.plan import Chains, Device, longest

__all__ = ["Columns", "Planes", "Sets", "chains", "forward", "gradients", "launch_update", "launch_use", "walk"]


def walk(sets: Sets, *arrays, device: Device | None = None) -> Planes | Columns:
    """Return the walk for a view of x; arrays: all that are like x; device: the GPU, None for the one with these."""
    if sets.run > 1:
        return Planes(sets, *arrays)
    return Columns(sets, *arrays, device=Device.of(arrays[0]) if device is None else device)


@dataclass(frozen=True)
class Outputs:
    """The operands of a forward pass: output, and mean, invvar and variance (unbiased; or None) of every set.

    x, output: `sets.shape`; mean, variance, invvar: (sets.total,), accumulator dtype.
    """

    sets: Sets
    x: Any
    weight: Any
    bias: Any
    eps: Any
    mean: Any
    variance: Any
    invvar: Any
    output: Any

    @property
    def like_x(self) -> tuple:
        """Return the arrays that are like x."""
        return self.x, self.output

    @property
    def reading(self) -> tuple:
        """Return the matrices that come in."""
        return (self.x,)

    @property
    def writing(self) -> tuple:
        """Return the matrices that go out."""
        return (self.output,)


@dataclass(frozen=True)
class Gradients:
    """The operands of a backward pass.

    own: the statistics are those of x itself. grad_weight, grad_bias: (sets.parameters,) or None.
    """

    sets: Sets
    grad_output: Any
    x: Any
    mean: Any
    invvar: Any
    weight: Any
    own: bool
    grad_input: Any
    grad_weight: Any
    grad_bias: Any

    @property
    def like_x(self) -> tuple:
        """Return the arrays that are like x."""
        return self.grad_output, self.x, self.grad_input

    @property
    def reading(self) -> tuple:
        """Return the matrices that come in."""
        return self.grad_output, self.x

    @property
    def writing(self) -> tuple:
        """Return the matrices that go out."""
        return (self.grad_input,)


def rows_forward(launch, memory, walked: Planes | Columns, one: Outputs) -> bool:
    """Queue one kernel that holds a set in a block's registers; False if none does."""
    given = one.x, one.weight, one.bias, one.eps, one.mean, one.invvar, one.output
    return one.variance is None and launch_rows(launch, walked.sets, *given)


def together_forward(launch, memory, walked: Planes | Columns, one: Outputs) -> bool:
    """Queue one kernel that all multiprocessors work on together; False if it is not for this."""
    plan = plan_of(walked)
    if plan is not None:
        given = one.x, one.weight, one.bias, one.eps, one.mean, one.variance, one.invvar, one.output
        launch_forward(launch, memory, plan, walked.width, *given)
    return plan is not None


def pieces_forward(launch, memory, walked: Planes | Columns, one: Outputs) -> bool:
    """Queue three kernels, which do every image."""
    pieces = memory.empty((3, walked.pieces.size), one.mean.dtype)
    walked.launch_moments(launch, one.x, pieces)
    launch_moments(launch, pieces, walked.pieces, one.eps, one.mean, one.variance, one.invvar)
    walked.launch_output(launch, one.x, one.mean, one.invvar, one.weight, one.bias, one.output)
    return True


def together_backward(launch, memory, walked: Planes | Columns, one: Gradients) -> bool:
    """Queue one kernel that all multiprocessors work on together; False if it is not for this."""
    plan = plan_of(walked) if one.own else None
    if plan is not None:
        given = one.grad_output, one.x, one.mean, one.invvar, one.weight
        wanted = one.grad_input, one.grad_weight, one.grad_bias
        launch_backward(launch, memory, plan, walked.width, *given, *wanted)
    return plan is not None


def pieces_backward(launch, memory, walked: Planes | Columns, one: Gradients) -> bool:
    """Queue up to four kernels, which do every image."""
    sets, shape = walked.sets, walked.pieces
    given, kept = (one.grad_output, one.x, one.mean, one.invvar), one.mean.dtype
    grad_weight, grad_bias = one.grad_weight, one.grad_bias
    wanted = grad_weight is not None or grad_bias is not None
    mean_g = mean_gx = None
    if one.own or wanted:
        pieces = memory.empty((2, shape.size), kept)
        walked.launch_sums(launch, *given, pieces)
        channels = shape.by_channel()
        if one.own:
            mean_g, mean_gx = (memory.empty((sets.total,), kept) for _ in range(2))
            totals = (grad_bias, grad_weight) if shape == channels else None
            launch_sums(launch, pieces, shape, one.weight, sets.values, mean_g, mean_gx, totals)
        if (shape != channels or not one.own) and wanted:
            launch_sums(launch, pieces, channels, None, 1, grad_bias, grad_weight)
    walked.launch_gradient(launch, *given, one.weight, mean_g, mean_gx, one.grad_input)
    return True


FORWARD_WAYS = rows_forward, together_forward, pieces_forward  # the first that does an image does it
BACKWARD_WAYS = together_backward, pieces_backward


def forward(launch, memory, walked: Planes | Columns, x, weight, bias, eps, mean, variance, invvar, output):
    """Queue the kernels of a forward pass; operands as `Outputs`."""
    one = Outputs(walked.sets, x, weight, bias, eps, mean, variance, invvar, output)
    any(way(launch, memory, walked, one) for way in FORWARD_WAYS)


def gradients(
    launch, memory, walked: Planes | Columns, grad_output, x, mean, invvar, weight, own, grad_input, grad_weight,
    grad_bias,
):  # fmt: skip
    """Queue the kernels of a backward pass; operands as `Gradients`."""
    one = Gradients(walked.sets, grad_output, x, mean, invvar, weight, own, grad_input, grad_weight, grad_bias)
    any(way(launch, memory, walked, one) for way in BACKWARD_WAYS)


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
    thread_map, together = thread_map_for(walked.sets, walked.width), plan_of(walked)
    if together is not None:
        return together.chains, together.chains
    return over_set if thread_map is None else longest(over_set, row_chains(thread_map)), over_channel
