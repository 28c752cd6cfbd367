"""The norms of x + residual as functions, RMSNorm of heads, and RMSNorm with an offset.

`normalised` chooses, as `normlab.nn.functional` does for the plain norms:

- Eager tensors go through an autograd function (`normlab.nn.add_norm.autograd`).
- Compiled, exported and traced calls, and fake or functional tensors, go through operators that the graph shows
  (`normlab.nn.add_norm.operators`).
- torch.func's transforms, forward mode, torch.jit.trace and the export to ONNX get PyTorch's differentiable operations,
  and so do DTensors, nested and MaskedTensors, which know their layout.

Mixed precision: parameters as in `normlab.nn.layer_norm`, with the residual as the norm's input. x has the residual's
dtype, or one is float32 and the other a half. Under autocast the parameters are rounded to the autocast dtype, which
the output then has; x and the residual stay as they are.
"""

from collections.abc import Callable
from numbers import Real
from typing import Any, cast

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from normlab.nn import checks, traced
from normlab.nn import functional as rows
from normlab.nn.add_norm import autograd, operators, vectorised
from normlab.nn.add_norm.how import AddHow
from normlab.nn.dtypes import parameters_in_autocast, widened
from normlab.nn.formulas import accumulator, eps_or_default
from normlab.nn.private import autocasts, by_operations, differentiated, in_a_graph
from normlab.nn.shapes import MemoryEfficient, Parameter


def add_layer_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    dropout: float = 0.0,
    memory_efficient: MemoryEfficient = False,
) -> tuple[Tensor, Tensor]:
    """Return (output, new_residual): new_residual = x + residual, and output is its LayerNorm over the last dimension.

    Args:
        x, residual: (*leading, n), float16, bfloat16, float32 or float64; any strides. new_residual has the residual's
            dtype, and is rounded to it before it is normalised.
        weight, bias: (n,); each may be None. The output has their dtype, or without them the residual's.
        eps: added to the biased variance.
        dropout: the probability that an element of x is left out of the sum; all others are divided by 1 - dropout.
            It is PyTorch's dropout, in a kernel of its own that runs first, so `torch.manual_seed` repeats it.
        memory_efficient: which tensor the backward keeps. False: new_residual, which no layer keeps. True: the
            output, which a linear layer that follows keeps anyway; gradients are then wrong where a weight is small,
            as in `normlab.nn.layer_norm`. "exact": the output and the columns of x̂ whose weight is small; then an
            addition runs first, and the plain norm's exact mode follows.

    Raises:
        RuntimeError, TypeError, NotImplementedError: PyTorch's errors for the same mistakes in its layer_norm.
        ValueError: memory_efficient is none of the three; dropout is not between 0 and 1.
    """
    if has_torch_function_variadic(x, residual, weight, bias):
        given, options = (x, residual, weight, bias), _options(dropout, memory_efficient)
        return handle_torch_function(add_layer_norm, given, *given, eps, **options)
    how = AddHow(eps, False, 0.0, memory_efficient)
    return normalised(add_layer_norm, x, residual, weight, bias, how, dropout)


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    eps: float | None = 1e-6,
    *,
    offset: float = 0.0,
    dropout: float = 0.0,
    memory_efficient: MemoryEfficient = False,
) -> tuple[Tensor, Tensor]:
    """Return (output, new_residual) as `add_layer_norm`, with the RMSNorm in place of the LayerNorm.

    eps: None means PyTorch's default, as in `normlab.nn.rms_norm`.
    offset: gamma is weight + offset. Gemma's norms have an offset of 1. With an offset there is no "exact".
    """
    if has_torch_function_variadic(x, residual, weight):
        given, options = (x, residual, weight), _options(dropout, memory_efficient)
        return handle_torch_function(add_rms_norm, given, *given, eps, offset=offset, **options)
    how = AddHow(eps_or_default(eps, residual), True, offset, memory_efficient)
    return normalised(add_rms_norm, x, residual, weight, None, how, dropout)


def head_rms_norm(x: Tensor, weight: Tensor | None = None, eps: float | None = 1e-6, *, offset: float = 0.0) -> Tensor:
    """Return the RMSNorm of each head, as models normalise queries and keys before attention.

    Args:
        x: (*leading, heads, head_dim), float16, bfloat16, float32 or float64. On a GPU it is not copied if a token's
            heads follow each other in memory, and tokens lie equally far apart, by a multiple of head_dim: such as a
            query in a fused tensor of query, key and value.
        weight: (head_dim,); or (heads, head_dim), which PyTorch multiplies by, after a norm in accumulator precision;
            or None.
        eps, offset: as for `add_rms_norm`.

    Returns:
        The output, contiguous, in the weight's dtype (x's without one). The backward keeps x.

    Raises:
        RuntimeError, TypeError, NotImplementedError: as `add_layer_norm`.
    """
    if has_torch_function_variadic(x, weight):
        return handle_torch_function(head_rms_norm, (x, weight), x, weight, eps, offset=offset)
    eps = eps_or_default(eps, x)
    if isinstance(weight, Tensor) and isinstance(x, Tensor) and weight.dim() == 2:
        if weight.shape != x.shape[-2:]:
            raise RuntimeError(
                f"Expected weight to be of shape (head_dim,) or (heads, head_dim), but got weight of shape "
                f"{list(weight.shape)} and x of shape {list(x.shape)}"
            )
        checks.check_kinds(head_rms_norm, x, weight, None)
        _check_offset(head_rms_norm, offset)
        if autocasts(x):
            weight = cast(Tensor, parameters_in_autocast(x, x.shape[-1:], weight, None)[0])
        wide = accumulator(x.dtype)
        ones = torch.ones(x.shape[-1:], dtype=wide, device=x.device)  # with their dtype the output is not rounded
        with torch.autocast(x.device.type, enabled=False):
            xhat, _ = normalised(head_rms_norm, x, None, ones, None, AddHow(eps, True, 0.0, False))
            return (xhat * (weight.to(wide) + offset)).to(weight.dtype)
    return normalised(head_rms_norm, x, None, weight, None, AddHow(eps, True, offset, False))[0]


def offset_rms_norm(x: Tensor, weight: Tensor | None, eps: float | None, offset: float) -> Tensor:
    """Return the RMSNorm of x over the last dimension with gamma = weight + offset. `RMSNorm` calls it."""
    how = AddHow(eps_or_default(eps, x), True, offset, False)
    return normalised(add_rms_norm, x, None, weight, None, how)[0]


def normalised(
    function: Callable[..., Any],
    x: Tensor,
    residual: Parameter,
    weight: Parameter,
    bias: Parameter,
    how: AddHow,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return (output, new_residual) that a public function or a module asks for; errors name the function.

    residual: None normalises x itself, which is then new_residual.
    """
    if not torch.jit.is_tracing():  # a trace has tensors as sizes
        _check(function, x, residual, weight, bias, how)
        check_options(dropout, how.memory_efficient, how.offset)
    if dropout:
        x = torch.nn.functional.dropout(x, dropout)
    if autocasts(x):
        like = x if residual is None else residual
        weight, bias = parameters_in_autocast(like, like.shape[-1:], weight, bias)
        parameter = bias if weight is None else weight
        if parameter is not None and checks.mixed_by_pytorch_alone(like, parameter):  # float16 and bfloat16
            with torch.autocast(x.device.type, enabled=False):
                output, total = normalised(function, x, residual, widened(weight), widened(bias), how)
            return output.to(parameter.dtype), total
    if by_operations(x):
        return vectorised.composed(x, residual, weight, bias, how)
    if traced.wanted():
        total, mode = vectorised.summed(x, residual), how.memory_efficient
        output = traced.norm(total, x.shape[-1:], weight, bias, how.eps, how.rms, mode, how.offset)
        return output, total
    if how.memory_efficient == "exact":
        return _exact(x, residual, weight, bias, how)
    if in_a_graph(x):
        return operators.apply(x, residual, weight, bias, how)
    if differentiated(x, residual, weight, bias):
        output, new_residual, *_ = autograd.apply(x, residual, weight, bias, how, residual is not None, None)
    else:
        output, new_residual, *_ = autograd.chosen(x).forward(x, residual, weight, bias, how)
    return output, x if residual is None else new_residual


def _options(dropout: float, memory_efficient: MemoryEfficient) -> dict[str, Any]:
    """Return the options for a `__torch_function__`, without a dropout of 0: a class may not know it."""
    return {"memory_efficient": memory_efficient} | ({"dropout": dropout} if dropout else {})


def _exact(x: Tensor, residual: Parameter, weight: Parameter, bias: Parameter, how: AddHow) -> tuple[Tensor, Tensor]:
    """Return (output, new_residual) by an addition and the plain norm in its exact mode. Arguments are checked."""
    new_residual, plain = vectorised.summed(x, residual), rows.rms_norm if how.rms else rows.layer_norm
    options = rows.Options("exact", how.rms)
    with torch.autocast(x.device.type, enabled=False):  # the parameters have its dtype already
        return rows.norm(plain, new_residual, x.shape[-1:], weight, bias, how.eps, options), new_residual


def check_options(dropout: Any, memory_efficient: Any, offset: Any = 0.0) -> None:
    """Raise an error for options that are none, or that do not go together. The modules call this, too."""
    checks.check_mode(memory_efficient)
    if memory_efficient == "exact" and offset:
        raise ValueError(f'memory_efficient="exact" needs an offset of 0, got {offset!r}: use False or True')
    if type(dropout) is not float and not isinstance(dropout, Real):  # Real alone takes a microsecond
        raise TypeError(f"dropout must be float, not {type(dropout).__name__}")
    if not 0 <= float(dropout) <= 1:  # PyTorch's words
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {dropout}")


def _check_offset(function: Callable[..., Any], offset: Any) -> None:
    if type(offset) is not float and not isinstance(offset, Real):
        raise TypeError(f"{checks.argument(function, 'offset')} must be float, not {type(offset).__name__}")


def _check(
    function: Callable[..., Any], x: Any, residual: Any, weight: Parameter, bias: Parameter, how: AddHow
) -> None:
    """Raise PyTorch's errors for arguments that do not go together."""
    if not isinstance(x, Tensor):
        raise checks.not_a_tensor(function, "x", x)
    if not isinstance(residual, Tensor) and (residual is not None or function is add_layer_norm):
        raise checks.not_a_tensor(function, "residual", residual)
    _check_offset(function, how.offset)
    like = x if residual is None else residual
    if x.shape != like.shape:
        raise RuntimeError(
            f"Expected x to be of same shape as residual, but got x of shape {list(x.shape)} and residual of shape "
            f"{list(like.shape)}"
        )
    if not x.dim():
        raise RuntimeError("Expected x to have at least one dimension to normalise over, but got a scalar")
    checks.check(function, like, tuple(x.shape[-1:]), weight, bias, how.eps)
    checks.check_kinds(function, like, weight, bias)
    if x.device != like.device:
        raise checks.two_devices(like, x)
    if x.dtype is not like.dtype and {x.dtype, like.dtype} not in checks.MIXED:
        raise RuntimeError(
            f"mixed dtype: expect x to have scalar type of {checks.NAMES[like.dtype]}, as residual, or a mix of Float "
            f"with Half or BFloat16, but got {checks.NAMES.get(x.dtype, x.dtype)}"
        )
