"""The norms as PyTorch operators, `torch.ops.normlab.*`, for the graphs of torch.compile and torch.export.

Called by `normlab.nn.functional`. The engine that `normlab.nn.engines` chooses computes an operator. A fake
implementation returns the results' shapes without computing, and a registered function the gradients. Statistics have
the shape of the input's leading dimensions.

The number of columns that the exact mode keeps is known only when the graph runs: `exact_norm` has results of a dynamic
size. torch.compile breaks its graph at such an operator, so there `exact_norm_held` returns a handle instead (`hold`).

An operator's schema has no tuples, so an operator takes each tensor and option as an argument of its own. Its lists
have no None, so a backward returns only the gradients of parameters that are given.
"""

from typing import Any

import torch
from torch import Tensor

from normlab.host.exact import Kept
from normlab.nn import engines, formulas, gradients, traced
from normlab.nn.private import backward_form
from normlab.nn.shapes import How, MemoryEfficient, Owners, Parameter, Saved, Shape


def norm(
    x: Tensor,
    shape: Shape,
    weight: Parameter,
    bias: Parameter,
    eps: float,
    rms: bool,
    memory_efficient: MemoryEfficient,
    owners: Owners,
) -> Tensor:
    """Return the output of a norm, by its operator. owners: see `normlab.nn.exact`."""
    if traced.wanted():
        return traced.norm(x, shape, weight, bias, eps, rms, memory_efficient)
    if memory_efficient == "exact" and not torch.is_grad_enabled():
        memory_efficient = False  # no backward will follow, so nothing is kept
    if memory_efficient == "exact":
        operator = torch.ops.normlab.exact_norm_held if torch.compiler.is_compiling() else torch.ops.normlab.exact_norm
        return operator(x, shape, weight, bias, eps, rms, *owners)[0]
    if rms:
        return torch.ops.normlab.rms_norm(x, shape, weight, eps, memory_efficient)[0]
    return torch.ops.normlab.layer_norm(x, shape, weight, bias, eps, memory_efficient)[0]


@torch.library.custom_op("normlab::layer_norm", mutates_args=())
def layer_norm(
    x: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    memory_efficient: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (output, mean, invvar). memory_efficient: for the backward, see `_save_layer_norm`."""
    shape = tuple(normalized_shape)
    output, mean, invvar = engines.chosen(x).forward(x, shape, weight, bias, eps, False)
    leading = x.shape[: x.dim() - len(shape)]
    return output, mean.reshape(leading), invvar.reshape(leading)


@torch.library.custom_op("normlab::rms_norm", mutates_args=())
def rms_norm(
    x: Tensor, normalized_shape: list[int], weight: Tensor | None, eps: float, memory_efficient: bool
) -> tuple[Tensor, Tensor]:
    """Return (output, invvar)."""
    shape = tuple(normalized_shape)
    output, _, invvar = engines.chosen(x).forward(x, shape, weight, None, eps, True)
    return output, invvar.reshape(x.shape[: x.dim() - len(shape)])


@torch.library.custom_op("normlab::exact_norm", mutates_args=())
def exact_norm(
    x: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    rms: bool,
    own_weight: Tensor | None,
    own_bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return (output, invvar, columns, values). columns, values: x̂ of the columns at risk, as in a `Kept`."""
    output, invvar, kept = _exact(x, normalized_shape, weight, bias, eps, rms, (own_weight, own_bias))
    return output, invvar, kept.columns.clone(), kept.values  # a copy, because other forwards share the list


def _exact(
    x: Tensor, normalized_shape: list[int], weight: Parameter, bias: Parameter, eps: float, rms: bool, owners: Owners
) -> tuple[Tensor, Tensor, Kept]:
    """Return the output, invvar and x̂ of the columns at risk."""
    shape, engine = tuple(normalized_shape), engines.chosen(x)
    output, mean, invvar = engine.forward(x, shape, weight, bias, eps, rms)
    columns = engine.columns_at_risk(invvar, output, shape, weight, bias, eps, owners)
    if columns.shape[0]:
        values = engine.keep(x, mean, invvar, shape, weight, bias, eps, columns)
    else:
        values = output.new_empty((invvar.numel(), 0))
    return output, invvar.reshape(x.shape[: x.dim() - len(shape)]), Kept(columns, values)


@torch.library.custom_op("normlab::exact_norm_held", mutates_args=())
def exact_norm_held(
    x: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    rms: bool,
    own_weight: Tensor | None,
    own_bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (output, invvar, handle). The handle holds x̂ of the columns at risk, as a `Kept`."""
    output, invvar, kept = _exact(x, normalized_shape, weight, bias, eps, rms, (own_weight, own_bias))
    return output, invvar, hold(kept)


def hold(kept: Any) -> Tensor:
    """Return a handle: a tensor of one element, whose storage has `kept` as an attribute.

    `kept` lives as long as the graph saves the handle for the backward.
    """
    handle: Any = torch.empty(1, device="cpu")  # on the CPU, so that no CUDA graph captures its uses
    handle.untyped_storage().kept = kept
    return handle


def held(handle: Tensor, what: str) -> Any:
    """Return what `hold` has been given for this handle, or raise RuntimeError if the handle is a copy without it.

    what: its name in the error.
    """
    try:
        return handle.untyped_storage().kept  # type: ignore[attr-defined]
    except AttributeError:
        raise RuntimeError(
            'a compiled norm with memory_efficient="exact" got a copy of its handle in the backward, without the '
            f"{what} that it may have kept: saved tensors may not be copied or moved; use memory_efficient=False there"
        ) from None


@torch.library.custom_op("normlab::norm_backward", mutates_args=())
def norm_backward(
    grad_output: Tensor,
    saved: Tensor,
    mean: Tensor | None,
    invvar: Tensor,
    columns: Tensor | None,
    values: Tensor | None,
    normalized_shape: list[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    rms: bool,
    memory_efficient: bool,
    input_dtype: torch.dtype,
) -> list[Tensor]:
    """Return grad_input, then the gradients of weight and bias, without absent ones."""
    mode: MemoryEfficient = memory_efficient if columns is None else "exact"
    tensors = Saved(saved, invvar, weight, bias, columns, values, mean)
    return _computed(grad_output, tensors, How(input_dtype, tuple(normalized_shape), eps, rms, mode))


@torch.library.custom_op("normlab::exact_norm_held_backward", mutates_args=())
def exact_norm_held_backward(
    grad_output: Tensor,
    saved: Tensor,
    invvar: Tensor,
    handle: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    rms: bool,
    input_dtype: torch.dtype,
) -> list[Tensor]:
    """Return grad_input, then the gradients of weight and bias, without absent ones. handle: `exact_norm_held`'s.

    Raises:
        RuntimeError: the handle is a copy that hooks for saved tensors have made.
    """
    columns, values = held(handle, "columns")
    mode: MemoryEfficient = "exact"
    if not len(columns):
        columns, values, mode = None, None, True  # the two modes are the same where no column is at risk
    tensors = Saved(saved, invvar, weight, bias, columns, values)
    return _computed(grad_output, tensors, How(input_dtype, tuple(normalized_shape), eps, rms, mode))


def _computed(grad_output: Tensor, saved: Saved, how: How) -> list[Tensor]:
    """Return grad_input, then the gradients of weight and bias, without absent ones."""
    return formulas.present(engines.chosen(saved.tensor).backward(grad_output, saved, how))


def _fake(x: Tensor, shape: list[int], weight: Parameter, bias: Parameter) -> tuple[Tensor, Tensor]:
    """Return a fake output and a fake invvar."""
    output = x.new_empty(x.shape, dtype=formulas.output_dtype(x, weight, bias))
    return output, x.new_empty(x.shape[: x.dim() - len(shape)], dtype=formulas.accumulator(x.dtype))


@layer_norm.register_fake
def _(x, normalized_shape, weight, bias, eps, memory_efficient):
    output, invvar = _fake(x, normalized_shape, weight, bias)
    return output, torch.empty_like(invvar), invvar


@rms_norm.register_fake
def _(x, normalized_shape, weight, eps, memory_efficient):
    return _fake(x, normalized_shape, weight, None)


@exact_norm.register_fake
def _(x, normalized_shape, weight, bias, eps, rms, own_weight, own_bias):
    output, invvar = _fake(x, normalized_shape, weight, bias)
    there = torch.library.get_ctx()
    sizes_may_be_unknown = getattr(there, "_shape_env", there) is not None  # a tracer without one knows all sizes
    capacity = there.new_dynamic_size() if sizes_may_be_unknown else 0
    columns, values = x.new_empty(capacity, dtype=torch.int32), output.new_empty(invvar.numel(), capacity)
    return output, invvar, columns, values


@exact_norm_held.register_fake
def _(x, normalized_shape, weight, bias, eps, rms, own_weight, own_bias):
    return *_fake(x, normalized_shape, weight, bias), x.new_empty(1, dtype=torch.float32, device="cpu")


@norm_backward.register_fake
def _(grad_output, saved, mean, invvar, columns, values, shape, weight, bias, eps, rms, memory_efficient, input_dtype):
    return _fake_gradients(saved, weight, bias, input_dtype)


@exact_norm_held_backward.register_fake
def _(grad_output, saved, invvar, handle, shape, weight, bias, eps, rms, input_dtype):
    return _fake_gradients(saved, weight, bias, input_dtype)


def _fake_gradients(saved: Tensor, weight: Parameter, bias: Parameter, input_dtype: torch.dtype) -> list[Tensor]:
    return [saved.new_empty(saved.shape, dtype=input_dtype), *formulas.empty_gradients(weight, bias)]


def _save_layer_norm(ctx: Any, inputs: tuple, output: tuple) -> None:
    x, shape, weight, bias, eps, memory_efficient = inputs
    result, mean, invvar = output
    how = How(x.dtype, shape, eps, False, memory_efficient)
    if memory_efficient:  # a second derivative reaches the input through invvar
        ctx.mark_non_differentiable(mean)
        _save(ctx, Saved(result, invvar, weight, bias), how)
    else:
        ctx.mark_non_differentiable(mean, invvar)
        _save(ctx, Saved(x, invvar, weight, bias, mean=mean), how)


def _save_rms_norm(ctx: Any, inputs: tuple, output: tuple) -> None:
    x, shape, weight, eps, memory_efficient = inputs
    result, invvar = output
    if not memory_efficient:
        ctx.mark_non_differentiable(invvar)
    saved = result if memory_efficient else x
    _save(ctx, Saved(saved, invvar, weight, None), How(x.dtype, shape, eps, True, memory_efficient))


def _save_exact_norm(ctx: Any, inputs: tuple, output: tuple) -> None:
    x, shape, weight, bias, eps, rms, *_ = inputs
    result, invvar, columns, values = output
    _save(ctx, Saved(result, invvar, weight, bias, columns, values), How(x.dtype, shape, eps, rms, "exact"))


def _save_exact_norm_held(ctx: Any, inputs: tuple, output: tuple) -> None:
    x, shape, weight, bias, eps, rms, *_ = inputs
    result, invvar, handle = output
    ctx.mark_non_differentiable(invvar, handle)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(result, invvar, handle, weight, bias)
    ctx.how = How(x.dtype, shape, eps, rms, "exact")


def _save(ctx: Any, saved: Saved, how: How) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*saved)
    ctx.how = how


def _gradients(
    ctx: Any, grad_output: Tensor | None, grad_invvar: Tensor | None, grad_values: Tensor | None = None
) -> tuple[Parameter, Parameter, Parameter]:
    """Return the gradients of x, weight and bias."""
    saved = Saved(*ctx.saved_tensors)
    alone = grad_invvar is None and grad_values is None
    if grad_output is not None and alone and backward_form(grad_output) != "operations":
        return gradients.in_graph(grad_output, saved, ctx.how)
    return gradients.composed(grad_output, grad_invvar, grad_values, saved, ctx.how)


def _layer_norm_backward(ctx: Any, grad_output: Tensor | None, _: Any, *grad_invvar: Any) -> tuple[Parameter, ...]:
    grad_input, grad_weight, grad_bias = _gradients(ctx, grad_output, *grad_invvar)
    return grad_input, None, grad_weight, grad_bias, None, None


def _rms_norm_backward(ctx: Any, *grads: Tensor | None) -> tuple[Parameter, ...]:
    grad_input, grad_weight, _ = _gradients(ctx, *grads)
    return grad_input, None, grad_weight, None, None


def _exact_norm_backward(
    ctx: Any, grad_output: Tensor | None, grad_invvar: Tensor | None, _: Any, grad_values: Tensor | None
) -> tuple[Parameter, ...]:
    grad_input, grad_weight, grad_bias = _gradients(ctx, grad_output, grad_invvar, grad_values)
    return grad_input, None, grad_weight, grad_bias, *[None] * 4


def _exact_norm_held_backward(ctx: Any, grad_output: Tensor | None, *_: Any) -> tuple[Parameter, ...]:
    if grad_output is None:
        return (None,) * 8
    if torch.is_grad_enabled():  # autograd does not see how the kept values depend on x
        raise NotImplementedError(
            'a compiled norm with memory_efficient="exact" has no second derivatives: use memory_efficient=False there'
        )
    (output, invvar, handle, weight, bias), how = ctx.saved_tensors, ctx.how
    if backward_form(grad_output) == "operations":
        saved = Saved(output, invvar, weight, bias, *held(handle, "columns"))
        found = gradients.composed(grad_output, None, None, saved, how)
    else:
        dtype, shape, eps, rms, _ = how
        listed = torch.ops.normlab.exact_norm_held_backward(
            grad_output, output, invvar, handle, shape, weight, bias, eps, rms, dtype
        )
        found = formulas.with_absent(listed, weight, bias)
    grad_input, grad_weight, grad_bias = found
    return grad_input, None, grad_weight, grad_bias, *[None] * 4


layer_norm.register_autograd(_layer_norm_backward, setup_context=_save_layer_norm)
rms_norm.register_autograd(_rms_norm_backward, setup_context=_save_rms_norm)
exact_norm.register_autograd(_exact_norm_backward, setup_context=_save_exact_norm)
exact_norm_held.register_autograd(_exact_norm_held_backward, setup_context=_save_exact_norm_held)
