"""The norms as functions: apex's six, with apex's names, signatures and defaults, and the two that all of them are.

Eager tensors go through an autograd function (`normlab.nn.autograd`), the cheapest way on the host. What is compiled,
exported or traced by make_fx, and tensors that only pretend (fake, functional), go through custom operators
(`normlab.nn.custom`), which the graph shows. torch.func's transforms and forward mode go through PyTorch's
differentiable operations; what torch.jit.trace traces or ONNX exports gets ATen's. DTensors (of tensor parallelism) and
nested tensors get PyTorch's own norms, which know how these are laid out, and so do MaskedTensors.

Mixed precision: the input's dtype and the parameters' may differ if one is float32 and the other a half. The output has
the parameters' dtype, the input's where there are none.

Autocast: statistics in float32, of the input as it comes, and the output in the autocast dtype, to which the parameters
are rounded. apex rounds the input, too: `normlab.nn.apex_autocast`. `dtype_rule` has other rules for dtypes, PyTorch's
own among them (`normlab.nn.dtypes`).

Modes and tensors with a `__torch_function__` are asked first, torch.fx's proxies among them.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.overrides import has_torch_function_variadic

from normlab.host import norms, replay
from normlab.host.replay import CachedLaunch
from normlab.nn import autograd, checks, custom, dtypes, engines, formulas, vectorised
from normlab.nn.dtypes import Rule
from normlab.nn.overrides import overridden
from normlab.nn.private import PLAIN, any_autocast, in_a_graph, transformed, unwatched
from normlab.nn.shapes import MemoryEfficient, Parameter, Shape

NormalizedShape: TypeAlias = int | Sequence[int]
LEFT_TO_PYTORCH = ("DTensor", "MaskedTensor")
"""Types of tensors by name: their imports take up to 0.4 s."""


def layer_norm(
    input: Tensor,
    normalized_shape: NormalizedShape,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    memory_efficient: MemoryEfficient = False,
    *,
    dtype_rule: Rule = "apex",
) -> Tensor:
    """LayerNorm over the trailing dimensions, as `torch.nn.functional.layer_norm`.

    Args:
        input: (*leading, *normalized_shape), float16, bfloat16, float32 or float64; any strides.
        normalized_shape: the trailing dimensions to normalise over, or the last one as an int.
        weight, bias: normalized_shape; each may be None.
        eps: added to the biased variance.
        memory_efficient: what the backward keeps. False: the input. True: the output, and gradients go wrong where
            a weight is small (`normlab.oracle.recompute_error`), as in apex. "exact": the output and x̂ of the columns
            at risk, and gradients are right for every weight, up to the output's rounding.
        dtype_rule: whose dtype the output has, where the input's and the parameters' differ, and under autocast: a rule
            of `normlab.nn.dtypes`.

    Raises:
        RuntimeError, TypeError, NotImplementedError: PyTorch's, in its words.
        ValueError: another memory_efficient.
    """
    mode, rule = memory_efficient, dtype_rule
    return norm(layer_norm, input, normalized_shape, weight, bias, eps, mode, rms=False, rule=rule)


def rms_norm(
    input: Tensor,
    normalized_shape: NormalizedShape,
    weight: Tensor | None = None,
    eps: float | None = None,
    memory_efficient: MemoryEfficient = False,
    *,
    dtype_rule: Rule = "apex",
) -> Tensor:
    """RMSNorm over the trailing dimensions, as `torch.nn.functional.rms_norm`. Otherwise as `layer_norm`.

    eps=None is PyTorch's rule: the machine epsilon of what sums are done in, float64's for float64, else float32's.
    """
    mode, rule = memory_efficient, dtype_rule
    return norm(rms_norm, input, normalized_shape, weight, None, eps, mode, rms=True, rule=rule)


def fused_layer_norm(
    input: Tensor, normalized_shape: NormalizedShape, eps: float = 1e-6, memory_efficient: MemoryEfficient = False
) -> Tensor:
    """`layer_norm` without parameters; apex's name, signature and default eps."""
    return norm(fused_layer_norm, input, normalized_shape, None, None, eps, memory_efficient, rms=False)


def fused_layer_norm_affine(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    normalized_shape: NormalizedShape,
    eps: float = 1e-6,
    memory_efficient: MemoryEfficient = False,
) -> Tensor:
    """`layer_norm`; apex's name, signature and default eps. Either parameter may be None."""
    return norm(fused_layer_norm_affine, input, normalized_shape, weight, bias, eps, memory_efficient, rms=False)


def mixed_dtype_fused_layer_norm_affine(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    normalized_shape: NormalizedShape,
    eps: float = 1e-6,
    memory_efficient: MemoryEfficient = False,
) -> Tensor:
    """`fused_layer_norm_affine`, which mixes dtypes here, too; apex's name, signature and default eps."""
    function = mixed_dtype_fused_layer_norm_affine
    return norm(function, input, normalized_shape, weight, bias, eps, memory_efficient, rms=False)


def fused_rms_norm(
    input: Tensor,
    normalized_shape: NormalizedShape,
    eps: float | None = 1e-6,
    memory_efficient: MemoryEfficient = False,
) -> Tensor:
    """`rms_norm` without a weight; apex's name, signature and default eps."""
    return norm(fused_rms_norm, input, normalized_shape, None, None, eps, memory_efficient, rms=True)


def fused_rms_norm_affine(
    input: Tensor,
    weight: Tensor | None,
    normalized_shape: NormalizedShape,
    eps: float | None = 1e-6,
    memory_efficient: MemoryEfficient = False,
) -> Tensor:
    """`rms_norm`; apex's name, signature and default eps."""
    return norm(fused_rms_norm_affine, input, normalized_shape, weight, None, eps, memory_efficient, rms=True)


def mixed_dtype_fused_rms_norm_affine(
    input: Tensor,
    weight: Tensor | None,
    normalized_shape: NormalizedShape,
    eps: float | None = 1e-6,
    memory_efficient: MemoryEfficient = False,
) -> Tensor:
    """`fused_rms_norm_affine`, which mixes dtypes here, too; apex's name, signature and default eps."""
    function = mixed_dtype_fused_rms_norm_affine
    return norm(function, input, normalized_shape, weight, None, eps, memory_efficient, rms=True)


def norm(
    function: Callable[..., Tensor],
    x: Tensor,
    normalized_shape: NormalizedShape,
    weight: Parameter,
    bias: Parameter,
    eps: Any,
    memory_efficient: MemoryEfficient,
    *,
    rms: bool,
    rule: Rule = "apex",
) -> Tensor:
    """Return what each of the above does, which is `function`; the modules' as well. rule: of `normlab.nn.dtypes`."""
    if has_torch_function_variadic(x, weight, bias):
        given = {"input": x, "normalized_shape": normalized_shape, "weight": weight, "bias": bias, "eps": eps}
        return overridden(function, given | {"memory_efficient": memory_efficient, "dtype_rule": rule})
    output = _computed(function, x, normalized_shape, weight, bias, eps, memory_efficient, rms, rule)
    if rms and x.dim() > 3:
        output = _laid_out(output, x)
    return output if output.dtype is x.dtype else dtypes.ruled(output, x, rule)


def _computed(
    function: Callable[..., Tensor],
    x: Tensor,
    normalized_shape: NormalizedShape,
    weight: Parameter,
    bias: Parameter,
    eps: Any,
    memory_efficient: MemoryEfficient,
    rms: bool,
    rule: Rule,
) -> Tensor:
    """The norm, before `normlab.nn.dtypes.ruled`."""
    if not isinstance(x, Tensor):
        raise checks.not_a_tensor(function, "input", x)
    shape = checks.shape_of(function, normalized_shape)
    if eps is None and rms:
        eps = torch.finfo(formulas.accumulator(x.dtype)).eps
    owners = weight, bias
    if rule not in dtypes.OF_PARAMETERS and x.dtype is torch.float32:
        weight, bias = dtypes.widened(weight), dtypes.widened(bias)  # so that the output is not rounded
    if x.is_nested or (type(x) not in PLAIN and type(x).__name__ in LEFT_TO_PYTORCH):
        return _pytorch_s(x, shape, weight, bias, eps, rms)
    if torch.jit.is_tracing():  # before the checks of shapes, which are tensors there
        if not x.is_meta and torch.is_autocast_enabled(x.device.type):
            x, weight, bias = dtypes.autocast(x, shape, weight, bias, rule)
        checks.check_kinds(function, x, weight, bias)
        return _exportable(x, shape, weight, bias, eps, rms)
    checks.check_mode(memory_efficient)
    if memory_efficient and dtypes.input_is_smaller(x, weight, bias, rule):
        memory_efficient = False
    cached, pointers = _cached_launch(x, shape, weight, bias, eps, rms)
    if cached is not None and cached.checked:
        if not _differentiated(x, weight, bias):
            return cached(pointers)[0]
        return autograd.apply(x, weight, bias, (shape, eps, rms, memory_efficient, owners), cached, pointers)[0]
    checks.check(function, x, shape, weight, bias, eps)
    if x.is_meta:
        memory_efficient = memory_efficient is not False  # no column is at risk of what is not there
    elif any_autocast() and torch.is_autocast_enabled(x.device.type):  # the former takes a tenth
        x, weight, bias = dtypes.autocast(x, shape, weight, bias, rule)
    if rms and weight is not None and checks.mixed_by_pytorch_alone(x, weight):
        wide = torch.promote_types(x.dtype, weight.dtype)
        x_wide, weight = x.to(wide), weight.to(wide)
        output = norm(function, x_wide, shape, weight, None, eps, memory_efficient, rms=True, rule=rule)
        return output if rule == "wider" else output.to(x.dtype)
    checks.check_kinds(function, x, weight, bias)
    if transformed():
        return vectorised.composed(x, shape, weight, bias, eps, rms)
    if in_a_graph(x):
        if torch.compiler.is_exporting() and torch.onnx.is_in_onnx_export():
            return _exportable(x, shape, weight, bias, eps, rms)
        return custom.norm(x, shape, weight, bias, eps, rms, memory_efficient, owners)
    if cached is not None:
        cached.checked = True
    if not _differentiated(x, weight, bias):
        return engines.chosen(x).forward(x, shape, weight, bias, eps, rms)[0]
    return autograd.apply(x, weight, bias, (shape, eps, rms, memory_efficient, owners), None, [])[0]


def _differentiated(x: Tensor, weight: Parameter, bias: Parameter) -> bool:
    """Will gradients be asked for?"""
    wanted = x.requires_grad or (weight is not None and weight.requires_grad)
    return (wanted or (bias is not None and bias.requires_grad)) and torch.is_grad_enabled()


def _cached_launch(
    x: Tensor, shape: Shape, weight: Parameter, bias: Parameter, eps: Any, rms: bool
) -> tuple[CachedLaunch | None, list[int]]:
    """Return the cached launch of such a forward, and the addresses to call it with; None for other calls.

    Once the checks have passed it, nothing of what they look at is any different: that saves a tenth of a small call.
    """
    if not unwatched() or not engines.by_kernels(x) or type(eps) is not float or any_autocast() or in_a_graph(x):
        return None, []
    key, pointers = norms.forward_signature(x, shape, weight, bias, eps, rms)
    return replay.find(key), pointers


def _laid_out(output: Tensor, x: Tensor) -> Tensor:
    """The output as PyTorch's rms_norm lays it out: channels last where x is. Its layer_norm does not."""
    if x.is_nested or transformed() or x.is_contiguous():
        return output
    for dims, layout in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if x.dim() == dims and x.is_contiguous(memory_format=layout):
            return output.contiguous(memory_format=layout)
    return output


def _pytorch_s(x: Tensor, shape: Shape, weight: Parameter, bias: Parameter, eps: float, rms: bool) -> Tensor:
    """PyTorch's own norm, which saves the input."""
    if rms:
        return torch.nn.functional.rms_norm(x, list(shape), weight, eps)
    return torch.nn.functional.layer_norm(x, list(shape), weight, bias, eps)


def _exportable(x: Tensor, shape: Shape, weight: Parameter, bias: Parameter, eps: float, rms: bool) -> Tensor:
    """A norm for tracers and ONNX: ATen's layer_norm; its rms_norm ONNX's exporter does not know in parts."""
    if rms:
        return vectorised.composed(x, shape, weight, bias, eps, rms)
    dtype = formulas.output_dtype(x, weight, bias)
    if x.dtype != dtype:  # ATen's takes half parameters only beside a half input, and gives the input's dtype
        wide = formulas.accumulator(x.dtype)
        x, weight, bias = x.to(wide), formulas.to(weight, wide), formulas.to(bias, wide)
    # Also where it is there already: a trace that runs under autocast gets float32 from ATen's.
    return torch.nn.functional.layer_norm(x, shape, weight, bias, eps).to(dtype)
