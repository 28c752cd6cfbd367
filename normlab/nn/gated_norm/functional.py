"""RMSNorm with a gate as a function; it chooses between engines, operators and operations as `add_norm.functional`.

Mixed precision: the weight as in `normlab.nn.rms_norm`. The gate has x's dtype. Under autocast the output has the
autocast dtype, with or without a weight, unless x is float64: the weight is rounded to it. x and the gate stay as they
are.
"""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from normlab.host.gated_norm import check_options
from normlab.nn import checks
from normlab.nn.dtypes import parameters_in_autocast
from normlab.nn.formulas import eps_or_default
from normlab.nn.gated_norm import autograd, operators, vectorised
from normlab.nn.gated_norm.vectorised import GateHow
from normlab.nn.private import autocasts, by_operations, differentiated, in_a_graph
from normlab.nn.shapes import Parameter


def gated_rms_norm(
    x: Tensor,
    gate: Tensor,
    weight: Tensor | None = None,
    eps: float | None = 1e-6,
    *,
    norm_before_gate: bool = True,
    memory_efficient: bool = False,
) -> Tensor:
    """Return the RMSNorm of x over the last dimension with a gate.

    Args:
        x, gate: (*leading, n), one dtype: float16, bfloat16, float32 or float64; any strides.
        weight: (n,), or None. The output has its dtype, or without it x's.
        eps: added to the mean square; None means PyTorch's default, as in `normlab.nn.rms_norm`.
        norm_before_gate: True: x̂ weight silu(gate), as in Qwen3-Next. False: the RMSNorm of x silu(gate), as Mamba-2
            has it by default.
        memory_efficient: which tensors the backward keeps beside the gate. False: x, which often nothing else keeps.
            True: the output, which a linear layer that follows keeps anyway; gradients are then wrong where
            |weight silu(gate)| < eps. Only with norm_before_gate.

    Raises:
        RuntimeError, TypeError, NotImplementedError: PyTorch's errors for the same mistakes in its rms_norm.
        ValueError: an option is not False or True, or memory_efficient without norm_before_gate.
    """
    if has_torch_function_variadic(x, gate, weight):
        given = x, gate, weight
        options: dict[str, Any] = {"norm_before_gate": norm_before_gate, "memory_efficient": memory_efficient}
        return handle_torch_function(gated_rms_norm, given, *given, eps, **options)
    eps = eps_or_default(eps, x)
    if not torch.jit.is_tracing():  # a trace has tensors as sizes
        _check(x, gate, weight, eps)
    check_options(norm_before_gate, memory_efficient)
    how = GateHow(eps, norm_before_gate, memory_efficient)
    if autocasts(x):
        weight, _ = parameters_in_autocast(x, x.shape[-1:], weight, None)
        if weight is not None and checks.mixed_by_pytorch_alone(x, weight):  # float16 and bfloat16
            with torch.autocast(x.device.type, enabled=False):
                return gated_rms_norm(x, gate, weight.float(), **how._asdict()).to(weight.dtype)
    if by_operations(x):
        return vectorised.forward(x, gate, weight, how)[0]
    if in_a_graph(x):
        return operators.apply(x, gate, weight, how)
    if differentiated(x, gate, weight):
        return autograd.apply(x, gate, weight, how)[0]
    return autograd.chosen(x).forward(x, gate, weight, how)[0]


def _check(x: Any, gate: Any, weight: Parameter, eps: Any) -> None:
    """Raise PyTorch's errors for arguments that do not go together."""
    for name, given in (("x", x), ("gate", gate)):
        if not isinstance(given, Tensor):
            raise checks.not_a_tensor(gated_rms_norm, name, given)
    if gate.shape != x.shape:
        raise RuntimeError(
            f"Expected gate to be of same shape as x, but got gate of shape {list(gate.shape)} and x of shape "
            f"{list(x.shape)}"
        )
    if not x.dim():
        raise RuntimeError("Expected x to have at least one dimension to normalise over, but got a scalar")
    checks.check(gated_rms_norm, x, tuple(x.shape[-1:]), weight, None, eps)
    checks.check_kinds(gated_rms_norm, x, weight, None)
    if gate.device != x.device:
        raise checks.two_devices(x, gate)
    if gate.dtype is not x.dtype:
        raise RuntimeError(
            f"expected gate to have scalar type of {checks.NAMES[x.dtype]}, as x, but got "
            f"{checks.NAMES.get(gate.dtype, gate.dtype)}"
        )
