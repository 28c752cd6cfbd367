"""The norms as one autograd function: what is saved, and the gradients, once and twice.

Called by `normlab.nn.functional` for eager PyTorch; `normlab.nn.engines` chooses what computes. A first derivative runs
there; with create_graph=True it is composed of differentiable operations on any device (`normlab.nn.gradients`).

What is saved of the forward's results is saved as an output, for second derivatives; it also lets PyTorch notice when
somebody has changed the output in place.
"""

from typing import Any, TypeAlias

import torch
from torch import Tensor

from normlab.keeping import Kept
from normlab.nn import engines, gradients, launched
from normlab.nn.shapes import MemoryEfficient, Owners, Parameter, Shape
from normlab.nn.watchers import onlooker, unwatched
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
        if recording is None:
            run = engines.chosen(x)
            output, mean, invvar = run.forward(x, shape, weight, bias, eps, rms)
        else:
            run = launched
            output, mean, invvar = recording(pointers)
        ctx.set_materialize_grads(False)
        if memory_efficient == "exact" and run.nothing_to_keep(x, weight, bias, eps, recording, pointers):
            memory_efficient = True
        if memory_efficient == "exact":
            columns, values = run.keep(x, mean, invvar, shape, weight, bias, eps, owners)
            if columns.shape[0]:
                ctx.how = run, recording, (x.dtype, shape, eps, rms, "exact")
                ctx.save_for_backward(output, invvar, weight, bias, columns, values, None)
                return output, invvar, values
            memory_efficient = True  # which is the same where nothing is at risk, and has less to save
        ctx.how = run, recording, (x.dtype, shape, eps, rms, memory_efficient)
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
        run, recording, how = ctx.how
        tensors = ctx.saved_tensors
        dtype, shape, eps, rms, memory_efficient = how
        looks_on: str | None = "all"
        if grad_output is not None and grad_invvar is None and grad_values is None:
            if recording is not None and unwatched() and not torch.is_grad_enabled():
                followed = recording.followed(memory_efficient, (grad_output, *tensors))
                if followed is not None:
                    return *followed, None, None, None
            looks_on = onlooker(grad_output)
        if grad_output is None or looks_on == "all":
            result = gradients.composed(grad_output, grad_invvar, grad_values, gradients.Saved(*tensors), how)
        elif looks_on == "graph":
            result = gradients.in_graph(grad_output, gradients.Saved(*tensors), how)
        else:
            saved, invvar, weight, bias, columns, values, mean = tensors
            kept = None if columns is None else Kept(columns, values)
            before = () if recording is None else (recording,)
            result = run.backward(
                grad_output, saved, mean, invvar, shape, weight, bias, eps, rms, memory_efficient, kept, dtype, *before
            )
        return *result, None, None, None


# Without the Python that torch wraps around both: around the forward for torch.func's transforms, of which the caller
# has seen that none is active, 3 µs of 60; around the backward for other ways to write one, 0.6 µs.
apply = super(torch.autograd.Function, Norm).apply
Norm._backward_cls.apply = Norm.backward  # type: ignore[attr-defined]  # torch makes this class, an untyped one
