"""LayerNorm and RMSNorm of rows whose columns are sharded over the ranks of a process group.

    forward    moments of this rank's columns → one all-gather → merge → output of this rank's columns
    backward   Σ g and Σ g x̂ over this rank's columns → one all-gather → sums → grad_input of this rank's columns

The gradients of weight and bias belong to this rank's columns, so they need no collective. Statistics are float32, or
float64 for float64. Each rank sends 2 floats per row and one more forward, 2 floats per row backward; RMSNorm half of
that. CUDA tensors run normlab's kernels (`launched`), CPU tensors PyTorch's operations (`vectorised`), which also serve
float64, the exact mode and compiled code.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from normlab.distributed import launched, merging, vectorised
from normlab.distributed.collectives import Call, checked, gather, group_or_world, refuse_second_derivatives
from normlab.nn import checks, dtypes
from normlab.nn import vectorised as of_norms
from normlab.nn.autograd import what_exact_keeps
from normlab.nn.private import autocasts, differentiated, in_a_graph
from normlab.nn.shapes import How, MemoryEfficient, Parameter, Saved

Group = dist.ProcessGroup | None


def norm(
    function: Callable[..., Tensor],
    x: Tensor,
    weight: Parameter,
    bias: Parameter,
    group: Group,
    eps: float,
    rms: bool,
    memory_efficient: MemoryEfficient,
    rule: dtypes.Rule = "apex",
) -> Tensor:
    """Return the norm of this rank's columns, a plain tensor, after checks.

    function: the public function, which errors name. rule: for the output's dtype (`normlab.nn.dtypes`).
    """
    group = group_or_world(group)
    checked(group, lambda: _check(function, x, weight, bias, eps, memory_efficient))
    given, owners, shape = x, (weight, bias), (x.shape[-1],)
    if rule not in dtypes.OF_PARAMETERS and x.dtype is torch.float32:
        weight, bias = dtypes.widened(weight), dtypes.widened(bias)
    if autocasts(x):
        x, weight, bias = dtypes.autocast(x, shape, weight, bias, rule)
    passes = "forward and backward" if differentiated(x, weight, bias) else "forward alone"
    call = Call(function.__name__, (*x.shape[:-1], "*"), (str(x.dtype), f"eps {float(eps)}", passes))
    if memory_efficient == "exact" and in_a_graph(x):
        memory_efficient = False  # the number of columns at risk would be a size that the graph cannot know
    how = How(x.dtype, shape, eps, rms, memory_efficient)
    return dtypes.to_rule_dtype(_ShardedNorm.apply(x, weight, bias, how, owners, group, call), given, rule)


def _check(
    function: Callable[..., Tensor], x: Any, weight: Parameter, bias: Parameter, eps: object, memory_efficient: object
) -> None:
    """Raise an error for arguments that are wrong on this rank, whatever the other ranks have."""
    checks.check_mode(memory_efficient)
    if not isinstance(x, Tensor):
        raise checks.not_a_tensor(function, "x", x)
    if not x.dim():
        raise ValueError(f"{function.__name__}(): x needs a last dimension to normalise over, but has shape ()")
    checks.check(function, x, (x.shape[-1],), weight, bias, eps)
    checks.check_kinds(function, x, weight, bias)


class _ShardedNorm(torch.autograd.Function):
    """Compute apply(x, weight, bias, how, owners, group, call) -> output and its gradients. owners: `Owners`."""

    @staticmethod
    def forward(ctx: Any, x, weight, bias, how: How, owners, group: dist.ProcessGroup, call: Call) -> Tensor:
        """Return this rank's columns of the output."""
        by_kernels = launched.merges(x, how)
        way: ModuleType = launched if by_kernels and x.shape[-1] else vectorised
        messages = gather(way.message(x, how.rms), group, call)
        count, mean, _, invvar = merging.statistics(messages, how.eps, how.rms, by_kernels)
        by_row = (*x.shape[:-1], 1)
        mean, invvar = None if mean is None else mean.view(by_row), invvar.view(by_row)
        output = way.output(x, mean, invvar, weight, bias)
        ctx.group, ctx.call, ctx.way, ctx.by_kernels = group, call, way, by_kernels
        ctx.how = _save(ctx, x, output, mean, invvar, count, weight, bias, how, owners)
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Parameter, ...]:
        """Return the gradients of x, weight and bias, of this rank's columns."""
        checked(ctx.group, lambda: refuse_second_derivatives(ctx.call))
        count, *tensors = ctx.saved_tensors
        message, gradients = ctx.way.backward(grad_output, Saved(*tensors), ctx.how)
        call = ctx.call._replace(name=f"the backward of {ctx.call.name}")
        messages = gather(message, ctx.group, call)
        return *gradients(merging.means(messages, count, ctx.how.rms, ctx.by_kernels)), *[None] * 4


def _save(ctx: Any, x, output, mean, invvar, count, weight, bias, how: How, owners) -> How:
    """Save the backward's tensors, and return its options: "exact" may become another mode, as in `nn.autograd`."""
    mode = how.memory_efficient
    columns = values = None
    if mode == "exact":
        results, asked = (output, mean, invvar), (how.shape, how.eps, how.rms, mode, owners)
        mode, columns, values = what_exact_keeps(of_norms, x, results, weight, bias, asked)
    saved = Saved(output, invvar, weight, bias, columns, values)
    if not mode:
        saved = Saved(x, invvar, weight, bias, mean=mean)
    ctx.save_for_backward(count, *saved)
    return how._replace(memory_efficient=mode)
