"""LayerNorm modulated per sample as a function; it chooses engines, operators and operations as `add_norm.functional`.

Mixed precision: scale and shift as weight and bias in `normlab.nn.layer_norm`. Under autocast they are rounded to the
autocast dtype, which the output then has; x stays as it is.
"""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from normlab.nn import checks
from normlab.nn.modulated_norm import autograd, operators, vectorised
from normlab.nn.private import autocasts, by_operations, differentiated, in_a_graph


def modulated_layer_norm(x: Tensor, scale: Tensor, shift: Tensor, eps: float = 1e-6) -> Tensor:
    """Return x̂ (1 + scale) + shift, where x̂ is x normalised over the last dimension: AdaLN, as in DiT.

    Args:
        x: (batch, ..., n), float16, bfloat16, float32 or float64; any strides.
        scale, shift: (batch, n). The output has their dtype.
        eps: added to the biased variance.

    Raises:
        RuntimeError, TypeError, NotImplementedError: PyTorch's errors for the same mistakes in its layer_norm.
    """
    if has_torch_function_variadic(x, scale, shift):
        return handle_torch_function(modulated_layer_norm, (x, scale, shift), x, scale, shift, eps)
    if not torch.jit.is_tracing():  # a trace has tensors as sizes
        _check(x, scale, shift, eps)
    if autocasts(x) and x.dtype is not torch.float64:
        dtype = torch.get_autocast_dtype(x.device.type)
        scale, shift = scale.to(dtype), shift.to(dtype)
        if checks.mixed_by_pytorch_alone(x, scale):  # float16 and bfloat16
            with torch.autocast(x.device.type, enabled=False):
                return modulated_layer_norm(x, scale.float(), shift.float(), eps).to(dtype)
    if by_operations(x):
        return vectorised.forward(x, scale, shift, eps)[0]
    if in_a_graph(x):
        return operators.apply(x, scale, shift, eps)
    if differentiated(x, scale, shift):
        return autograd.apply(x, scale, shift, eps)
    return autograd.chosen(x).forward(x, scale, shift, eps)[0]


def _check(x: Any, scale: Any, shift: Any, eps: Any) -> None:
    """Raise PyTorch's errors for arguments that do not go together."""
    for name, given in (("x", x), ("scale", scale), ("shift", shift)):
        if not isinstance(given, Tensor):
            raise checks.not_a_tensor(modulated_layer_norm, name, given)
    if x.dim() < 2:
        raise RuntimeError(f"Expected x to be of shape (batch, ..., n), but got x of shape {list(x.shape)}")
    want = (x.shape[0], x.shape[-1])
    for name, given in (("scale", scale), ("shift", shift)):
        if given.shape != want:
            raise RuntimeError(
                f"Expected {name} to be of shape {list(want)}, the first and the last dimension of x, but got {name} "
                f"of shape {list(given.shape)} and x of shape {list(x.shape)}"
            )
    checks.check(modulated_layer_norm, x, tuple(x.shape[-1:]), None, None, eps)
    checks.check_kinds(modulated_layer_norm, x, scale, shift)
