"""The norms as one autograd function: what is saved, and the gradients, once and twice.

Called by `normlab.nn.functional` for eager PyTorch; `normlab.nn.engines` chooses what computes. A first derivative runs
there; with create_graph=True it is composed of differentiable operations (`normlab.nn.vectorised`) on any device.

Saving the output, x is not at hand for a second derivative. It is reached through what depends on it: the output, the
invvar and the kept x̂ are all outputs of this function, and are saved as such, so that gradients of theirs come back to
it. That it is saved as an output also lets PyTorch notice when somebody has changed it in place.
"""

from typing import Any, TypeAlias

import torch
from torch import Tensor

from normlab.keeping import Kept
from normlab.nn import engines, vectorised
from normlab.nn.shapes import MemoryEfficient, Owners, Parameter, Shape
from normlab.nn.watchers import more_than_one
from normlab.replay import Recording

How: TypeAlias = tuple[Shape, float, bool, MemoryEfficient, Owners]
"""normalized_shape, eps, rms, memory_efficient, and the parameters as the caller has them."""


class Norm(torch.autograd.Function):
    """apply(x, weight, bias, how, recording, pointers) -> output, or where that is saved a tuple that begins with it.

    recording: of such a forward, to be called with `pointers`; None: the forward goes the normal way.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Parameter,
        bias: Parameter,
        how: How,
        recording: Recording | None,
        pointers: list[int],
    ) -> Tensor | tuple[Tensor, ...]:
        """The output; saving it, also what else is saved with it."""
        shape, eps, rms, memory_efficient, owners = how
        run = engines.chosen(x)
        if recording is None:
            output, mean, invvar = run.forward(x, shape, weight, bias, eps, rms)
        else:
            output, mean, invvar = recording(pointers)
        ctx.set_materialize_grads(False)
        if memory_efficient == "exact" and run.nothing_to_keep(x, weight, bias, eps, owners):
            memory_efficient = True
        if memory_efficient == "exact":
            columns, values = run.keep(x, mean, invvar, shape, weight, bias, eps, owners)
            if columns.shape[0]:
                ctx.how = run, x.dtype, shape, eps, rms, "exact", recording
                ctx.save_for_backward(output, invvar, weight, bias, columns, values, None)
                return output, invvar, values
            memory_efficient = True  # which is the same where nothing is at risk, and has less to save
        ctx.how = run, x.dtype, shape, eps, rms, memory_efficient, recording
        if not memory_efficient:
            ctx.save_for_backward(x, invvar, weight, bias, None, None, mean)
            return output
        ctx.save_for_backward(output, invvar, weight, bias, None, None, None)
        return output, invvar

    @staticmethod
    def backward(
        ctx: Any, grad_output: Tensor | None, grad_invvar: Tensor | None = None, grad_values: Tensor | None = None
    ) -> tuple[Tensor | None, ...]:
        """Gradients of x, weight and bias."""
        run, dtype, shape, eps, rms, memory_efficient, recording = ctx.how
        tensors = ctx.saved_tensors
        composed = torch.is_grad_enabled() or grad_invvar is not None or grad_values is not None
        composed = composed or grad_output is None or more_than_one(grad_output)
        if recording is not None and not composed:
            gradients = recording.followed(memory_efficient, (grad_output, *tensors))
            if gradients is not None:
                return *gradients, None, None, None
        saved, invvar, weight, bias, columns, values, mean = tensors
        kept = None if columns is None else Kept(columns, values)
        if composed:
            run = vectorised
            if not memory_efficient:  # so that the gradient knows how they depend on x
                mean, invvar = vectorised.statistics(saved.to(invvar.dtype), shape, eps, rms)
        gradients = None, None, None
        if grad_output is not None:
            before = () if recording is None or composed else (recording,)
            gradients = run.backward(
                grad_output, saved, mean, invvar, shape, weight, bias, eps, rms, memory_efficient, kept, dtype, *before
            )
        if grad_invvar is not None or grad_values is not None:
            further = through_saved(grad_invvar, grad_values, saved, invvar, shape, weight, bias, eps, rms, kept)
            further = further.to(dtype)
            gradients = further if gradients[0] is None else gradients[0] + further, *gradients[1:]
        return *gradients, None, None, None


# Without the Python that torch wraps around both: around the forward for torch.func's transforms, of which the caller
# has seen that none is active, 3 µs of 60; around the backward for other ways to write one, 0.6 µs.
apply = super(torch.autograd.Function, Norm).apply
Norm._backward_cls.apply = Norm.backward  # type: ignore[attr-defined]  # torch makes this class, an untyped one


def through_saved(
    grad_invvar: Tensor | None,
    grad_values: Tensor | None,
    output: Tensor,
    invvar: Tensor,
    shape: Shape,
    weight: Parameter,
    bias: Parameter,
    eps: float,
    rms: bool,
    kept: Kept | None,
) -> Tensor:
    """What the gradients at invvar and at the kept x̂ are at x; both are there in a second derivative only.

    d invvar / dx = -invvar² x̂ / n, and a gradient at some columns of x̂ is one of g.
    """
    wide = invvar.dtype
    gamma, beta = vectorised.to(weight, wide), vectorised.to(bias, wide)
    xhat, _ = vectorised.normalised_from_output(output.to(wide), gamma, beta, eps, shape, kept)
    column = vectorised.column(invvar, output, shape)
    result = torch.zeros_like(xhat)
    if grad_invvar is not None:
        size = xhat.numel() // max(1, invvar.numel())
        result = result - vectorised.column(grad_invvar, output, shape) * column.square() * xhat / size
    if grad_values is not None and kept is not None:
        columns, _ = kept
        there = columns >= 0
        g = vectorised.replaced(torch.zeros_like(xhat), columns[there].long(), grad_values[:, there])
        result = result + vectorised.projected(g, None if rms else g, g * xhat, xhat, column, shape)
    return result
