"""The norms as one autograd function: the tensors that it saves, and its first and second derivatives.

Called by `normlab.nn.functional` for eager PyTorch. The engine that `normlab.nn.engines` chooses computes the forward
and a first derivative. With create_graph=True, differentiable operations compute it on any device
(`normlab.nn.gradients`).

Every result of the forward that the backward needs is returned as an output and saved as one. Second derivatives then
reach x through it, and PyTorch raises an error if a program has changed the saved output in place.
"""

from math import prod
from typing import Any, TypeAlias

import torch
from torch import Tensor

from normlab.host.replay import CachedLaunch
from normlab.nn import engines, gradients, launched
from normlab.nn.private import backward_form, direct_apply
from normlab.nn.shapes import How, MemoryEfficient, Owners, Parameter, Saved, Shape, Statistic

Asked: TypeAlias = tuple[Shape, float, bool, MemoryEfficient, Owners]
"""normalized_shape, eps, rms, memory_efficient, and the parameters that the caller gave."""


class Norm(torch.autograd.Function):
    """Compute apply(x, weight, bias, asked, cached, pointers) -> (output, and invvar and kept x̂ if they are saved).

    cached: the cached launch of this forward, to be called with `pointers`; None: the forward runs without one.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Parameter,
        bias: Parameter,
        asked: Asked,
        cached: CachedLaunch | None,
        pointers: list[int],
    ) -> tuple[Tensor, ...]:
        """Return the output; with memory_efficient also invvar and the values kept, because they are saved."""
        shape, eps, rms, memory_efficient, _ = asked
        if cached is None:
            engine = engines.chosen(x)
            output, mean, invvar = engine.forward(x, shape, weight, bias, eps, rms)
        else:
            engine = launched
            output, mean, invvar = cached(pointers)
        ctx.set_materialize_grads(False)
        columns = values = None
        if memory_efficient == "exact":
            results = output, mean, invvar
            memory_efficient, columns, values = what_exact_keeps(engine, x, results, weight, bias, asked)
        ctx.how = engine, How(x.dtype, shape, eps, rms, memory_efficient)
        if not memory_efficient:
            # In another order than below, so that a checkpoint sees other shapes if its second run saves the output.
            ctx.save_for_backward(invvar, x, weight, bias, None, None, mean)
            return (output,)
        ctx.save_for_backward(output, invvar, weight, bias, columns, values, None)
        return (output, invvar) if values is None else (output, invvar, values)

    @staticmethod
    def backward(
        ctx: Any, grad_output: Tensor | None, grad_invvar: Tensor | None = None, grad_values: Tensor | None = None
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, weight and bias."""
        engine, how = ctx.how
        tensor, invvar, weight, bias, columns, values, mean = ctx.saved_tensors
        if not how.memory_efficient:
            tensor, invvar = invvar, tensor
        saved = Saved(tensor, invvar, weight, bias, columns, values, mean)
        form: str | None = "operations"
        if grad_output is not None and grad_invvar is None and grad_values is None:
            form = backward_form(grad_output)
        if grad_output is None or form == "operations":
            result = gradients.composed(grad_output, grad_invvar, grad_values, saved, how)
        elif form == "operator":
            result = gradients.in_graph(grad_output, saved, how)
        else:
            result = engine.backward(grad_output, saved, how)
        return *result, None, None, None


apply = direct_apply(Norm)


def what_exact_keeps(
    engine: Any, x: Tensor, results: tuple[Tensor, Statistic, Tensor], weight: Parameter, bias: Parameter, asked: Asked
) -> tuple[MemoryEfficient, Parameter, Parameter]:
    """Return what a forward in the mode "exact" keeps: a mode, which may be another one, and a `Kept`'s tensors.

    engine: of `normlab.nn.engines`. results: output, mean and invvar, from the engine's forward.
    """
    (output, mean, invvar), (shape, eps, *_, owners) = results, asked
    columns = engine.columns_at_risk(invvar, output, shape, weight, bias, eps, owners)
    if not columns.shape[0]:
        return True, None, None  # the two modes are the same where no column is at risk
    if 2 * columns.shape[0] > prod(shape):
        return False, None, None  # x̂ of so many columns takes as much memory as the input
    return "exact", columns, engine.keep(x, mean, invvar, shape, weight, bias, eps, columns)
