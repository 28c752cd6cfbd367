"""The calls that fused layers make: a norm module with the addition before it, or with the stream past it.

A call is fused for plain tensors, eager or in a graph of torch.compile, and a norm without hooks. Hooks, tracers,
transforms and tensor subclasses must see the addition and the norm apart. With one of them, the call adds, and then
calls the module.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import has_torch_function_variadic

from normlab.nn import checks, dtypes, traced
from normlab.nn.add_norm import autograd
from normlab.nn.add_norm.autograd import chosen
from normlab.nn.add_norm.functional import offset_rms_norm
from normlab.nn.add_norm.how import AddHow
from normlab.nn.formulas import eps_or_default
from normlab.nn.modules import FusedLayerNorm, FusedRMSNorm
from normlab.nn.private import (
    PLAIN,
    any_global_hooks,
    autocasts,
    differentiated,
    function_mode_active,
    parameter_of,
    untraced,
)
from normlab.nn.shapes import Owners, Parameter
from normlab.nn.stream.operators import StreamNormInGraph

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def added(norm: Any, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return (norm(left + right), left + right), in one call where the norm allows it."""
    if _alone(norm) and left is not right and _plain(left, right):  # Dynamo refuses one tensor for two arguments
        wider = torch.promote_types(left.dtype, right.dtype)
        # the sum has the wider dtype, and so the residual must have it
        x, residual = (left, right) if right.dtype is wider else (right, left)
        call = _norm_call(norm, x, residual) if residual.dtype is wider else None
        if call is not None:
            return _computed(x, residual, call)
    total = left + right
    return norm(total), total


def passed(norm: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return (norm(x), x). The backward adds the gradient of the returned x to the norm's own in one call."""
    if torch.is_grad_enabled() and _alone(norm) and _plain(x):
        call = _norm_call(norm, x, None)
        if call is not None:
            return _computed(x, None, call)
    return norm(x), x


def offset_norm(norm: Any, x: Tensor) -> Tensor:
    """Return the output of a norm whose gamma is weight + norm.offset: the forward of norms that have replaced Gemma's.

    The norm goes over the last dimension, and its dtype_rule is not torch.nn's.
    """
    call = _norm_call(norm, x, None) if _plain(x) else None
    if call is not None:
        return _computed(x, None, call, past=False)[0]

    def compute(x: Tensor, weight: Tensor) -> Tensor:
        return offset_rms_norm(x, weight, norm.eps, norm.offset)

    return dtypes.by_formula(norm, x, x.dtype, compute)


class NormCall(NamedTuple):
    """The arguments of a norm's fused call. owners: the module's weight and bias; parameters: these, or casts of them.

    dtype: the output is rounded to it; None: the output has the kernel's dtype.
    """

    parameters: Owners
    owners: Owners
    how: AddHow
    dtype: torch.dtype | None


def _alone(norm: Any) -> bool:
    """Return True if a call of the module runs the forward of its class and no hook."""
    if not isinstance(norm, (FusedLayerNorm, FusedRMSNorm)) or "forward" in norm.__dict__:
        return False
    for name in HOOKS:
        if getattr(norm, name, True):
            return False
    return torch.compiler.is_compiling() or not any_global_hooks()


def _plain(*tensors: Any) -> bool:
    """Return True if a fused call takes these tensors: plain, of one shape and device; no tracer or mode is active."""
    if traced.wanted():  # the compiler fuses addition and norm itself
        return False
    first = tensors[0]
    for one in tensors:
        if type(one) not in PLAIN or one.is_nested or one.is_meta or one.dtype not in checks.FLOATS:
            return False
        if one.shape != first.shape or one.device != first.device:
            return False
    if torch.compiler.is_dynamo_compiling():  # torch.export, too, if it is strict
        return True
    return untraced() and not (has_torch_function_variadic(*tensors) and function_mode_active())


def _norm_call(norm: Any, x: Tensor, residual: Parameter) -> NormCall | None:
    """Return the call for the norm of x + residual, or of x; None if no fused call computes it."""
    like, rule = x if residual is None else residual, norm.dtype_rule
    rms = isinstance(norm, FusedRMSNorm)
    weight, bias = owners = parameter_of(norm, "weight"), None if rms else parameter_of(norm, "bias")
    if not x.dim() or norm.normalized_shape != tuple(x.shape[-1:]):
        return None
    if rule in ("apex", "torch") and autocasts(x):
        return None  # autocast changes their dtypes
    if rule not in dtypes.OF_PARAMETERS and like.dtype is torch.float32:  # half parameters would give a half output
        weight, bias = dtypes.widened(weight), dtypes.widened(bias)
    for one in (weight, bias):
        if one is not None:
            if type(one) not in PLAIN or one.shape != x.shape[-1:] or one.device != x.device:
                return None
            if one.dtype is not like.dtype and {one.dtype, like.dtype} not in checks.MIXED:
                return None
    mode = norm.memory_efficient
    if mode and dtypes.input_is_smaller(like, weight, bias, rule):
        mode = False  # the float32 output would take more memory than the input
    how = AddHow(eps_or_default(norm.eps, like), rms, getattr(norm, "offset", 0.0), mode)
    return NormCall((weight, bias), owners, how, like.dtype if rule in dtypes.OF_INPUT else None)


def _computed(x: Tensor, residual: Parameter, call: NormCall, past: bool = True) -> tuple[Tensor, Tensor]:
    """Return (output, stream) of a fused call. past: False if the caller does not use the stream."""
    (weight, bias), owners, how, dtype = call
    given = x, residual, weight, bias
    wanted = differentiated(*given)
    if torch.compiler.is_compiling():
        mode = how.memory_efficient if wanted else False
        casts = zip(owners, (weight, bias), strict=True)
        owned = [None if own is one else own for own, one in casts]  # not one tensor for two arguments, as above
        output, stream = StreamNormInGraph.apply(*given, *owned, how.eps, how.rms, how.offset, mode)
    elif wanted:
        output, stream, *_ = autograd.apply(*given, how, past, owners)
    else:
        output, stream, *_ = chosen(x).forward(*given, how)
    return output if dtype is None else output.to(dtype), x if stream is None else stream
