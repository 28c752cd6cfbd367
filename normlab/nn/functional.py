"""The norms as functions: torch.nn's `layer_norm` and `rms_norm`, and apex's six with apex's signatures and defaults.

A mode or a tensor with a `__torch_function__` gets the call first, torch.fx's proxies among them. Then `norm` chooses:

- Eager tensors go through an autograd function (`normlab.nn.autograd`), the cheapest way on the host.
- Compiled, exported and make_fx-traced calls, and fake or functional tensors, go through operators that the graph shows
  (`normlab.nn.custom`).
- torch.func's transforms and forward mode go through PyTorch's differentiable operations.
- torch.jit.trace and the export to ONNX get ATen's operations.
- DTensors (of tensor parallelism), nested and MaskedTensors get PyTorch's own norms, which know their layout.

Mixed precision: a float32 input may have half parameters, and a half input float32 parameters. The output has the
parameters' dtype, or the input's if there are no parameters.

Under autocast the parameters are rounded to the autocast dtype, and the output has it. The statistics are float32 and
those of the unrounded input. apex rounds the input, too: `normlab.nn.apex_autocast` switches this on.
`normlab.nn.dtypes` has the rules for dtypes that `dtype_rule` chooses from.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.overrides import has_torch_function_variadic

from normlab.host import norms, replay
from normlab.host.replay import CachedLaunch
from normlab.nn import autograd, checks, custom, dtypes, engines, formulas, vectorised
from normlab.nn.dtypes import Rule
from normlab.nn.overrides import overridden
from normlab.nn.private import autocasts, differentiated, in_a_graph, left_to_pytorch, transformed, untraced
from normlab.nn.shapes import MemoryEfficient, Parameter, Shape

NormalizedShape: TypeAlias = int | Sequence[int]


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
    """Return the LayerNorm over the trailing dimensions, as `torch.nn.functional.layer_norm` does.

    Args:
        input: (*leading, *normalized_shape), float16, bfloat16, float32 or float64; any strides.
        normalized_shape: the trailing dimensions to normalise over, or the last one as an int.
        weight, bias: normalized_shape; each may be None.
        eps: added to the biased variance.
        memory_efficient: which tensors the backward keeps. False: the input. True: the output; as in apex, gradients
            are then wrong where a weight is small (`normlab.oracle.recompute_error`). "exact": the output and x̂ of the
            columns at risk; gradients are then right for every weight, up to the output's rounding.
        dtype_rule: a rule of `normlab.nn.dtypes`. It sets the output's dtype under autocast, and where the input's
            dtype differs from the parameters'.

    Raises:
        RuntimeError, TypeError, NotImplementedError: PyTorch's errors, in PyTorch's words.
        ValueError: memory_efficient is not False, True or "exact", or dtype_rule is no rule.
    """
    if dtype_rule not in dtypes.NAMES:
        raise dtypes.unknown(dtype_rule)
    options = Options(memory_efficient, False, dtype_rule)
    return norm(layer_norm, input, normalized_shape, weight, bias, eps, options)


def rms_norm(
    input: Tensor,
    normalized_shape: NormalizedShape,
    weight: Tensor | None = None,
    eps: float | None = None,
    memory_efficient: MemoryEfficient = False,
    *,
    dtype_rule: Rule = "apex",
) -> Tensor:
    """Return the RMSNorm over the trailing dimensions, as `torch.nn.functional.rms_norm` does; else see `layer_norm`.

    eps=None means PyTorch's default: the machine epsilon of the sums' dtype, float64 for float64 and else float32.
    """
    if dtype_rule not in dtypes.NAMES:
        raise dtypes.unknown(dtype_rule)
    options = Options(memory_efficient, True, dtype_rule)
    return norm(rms_norm, input, normalized_shape, weight, None, eps, options)


def fused_layer_norm(
    input: Tensor, normalized_shape: NormalizedShape, eps: float = 1e-6, memory_efficient: MemoryEfficient = False
) -> Tensor:
    """Return `layer_norm` without parameters; name, signature and default eps are apex's."""
    return norm(fused_layer_norm, input, normalized_shape, None, None, eps, Options(memory_efficient, False))


def fused_layer_norm_affine(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    normalized_shape: NormalizedShape,
    eps: float = 1e-6,
    memory_efficient: MemoryEfficient = False,
) -> Tensor:
    """Return `layer_norm`, where either parameter may be None; name, signature and default eps are apex's."""
    return norm(fused_layer_norm_affine, input, normalized_shape, weight, bias, eps, Options(memory_efficient, False))


def mixed_dtype_fused_layer_norm_affine(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    normalized_shape: NormalizedShape,
    eps: float = 1e-6,
    memory_efficient: MemoryEfficient = False,
) -> Tensor:
    """Return `fused_layer_norm_affine`, which takes mixed dtypes itself; name, signature and default eps are apex's."""
    function = mixed_dtype_fused_layer_norm_affine
    return norm(function, input, normalized_shape, weight, bias, eps, Options(memory_efficient, False))


def fused_rms_norm(
    input: Tensor,
    normalized_shape: NormalizedShape,
    eps: float | None = 1e-6,
    memory_efficient: MemoryEfficient = False,
) -> Tensor:
    """Return `rms_norm` without a weight; name, signature and default eps are apex's."""
    return norm(fused_rms_norm, input, normalized_shape, None, None, eps, Options(memory_efficient, True))


def fused_rms_norm_affine(
    input: Tensor,
    weight: Tensor | None,
    normalized_shape: NormalizedShape,
    eps: float | None = 1e-6,
    memory_efficient: MemoryEfficient = False,
) -> Tensor:
    """Return `rms_norm`; name, signature and default eps are apex's."""
    return norm(fused_rms_norm_affine, input, normalized_shape, weight, None, eps, Options(memory_efficient, True))


def mixed_dtype_fused_rms_norm_affine(
    input: Tensor,
    weight: Tensor | None,
    normalized_shape: NormalizedShape,
    eps: float | None = 1e-6,
    memory_efficient: MemoryEfficient = False,
) -> Tensor:
    """Return `fused_rms_norm_affine`, which takes mixed dtypes itself; name, signature and default eps are apex's."""
    function = mixed_dtype_fused_rms_norm_affine
    return norm(function, input, normalized_shape, weight, None, eps, Options(memory_efficient, True))


class Options(NamedTuple):
    """The options of a norm. rule: a rule of `normlab.nn.dtypes`."""

    memory_efficient: MemoryEfficient
    rms: bool
    rule: Rule = "apex"


def norm(
    function: Callable[..., Tensor],
    x: Tensor,
    normalized_shape: NormalizedShape,
    weight: Parameter,
    bias: Parameter,
    eps: Any,
    options: Options,
) -> Tensor:
    """Return the norm that a public function or a module asks for.

    function: the public function, which errors name and which a `__torch_function__` gets.
    """
    memory_efficient, rms, rule = options
    if has_torch_function_variadic(x, weight, bias):
        given = {"input": x, "normalized_shape": normalized_shape, "weight": weight, "bias": bias, "eps": eps}
        return overridden(function, given | {"memory_efficient": memory_efficient, "dtype_rule": rule})
    output = _computed(function, x, normalized_shape, weight, bias, eps, options)
    if rms and x.dim() > 3:
        output = _laid_out(output, x)
    return output if output.dtype is x.dtype else dtypes.to_rule_dtype(output, x, rule)


def _computed(
    function: Callable[..., Tensor],
    x: Tensor,
    normalized_shape: NormalizedShape,
    weight: Parameter,
    bias: Parameter,
    eps: Any,
    options: Options,
) -> Tensor:
    """Return the norm's output, whose layout and dtype `norm` then corrects."""
    memory_efficient, rms, rule = options
    if not isinstance(x, Tensor):
        raise checks.not_a_tensor(function, "input", x)
    if eps is None and rms:
        eps = formulas.eps_or_default(eps, x)
    owners = weight, bias  # the caller's parameters, which the exact mode asks for changes; these below may be casts
    if rule not in dtypes.OF_PARAMETERS and x.dtype is torch.float32:
        # The kernels' output has the parameters' dtype, and these rules want float32 here.
        weight, bias = dtypes.widened(weight), dtypes.widened(bias)
    cached, pointers = _cached_launch(x, normalized_shape, weight, bias, eps, rms)
    # The cached launch's key holds all that the checks look at, so the checks need to pass only once for a key.
    known = cached is not None and cached.checked
    known = known and type(memory_efficient) in checks.MODE_TYPES and memory_efficient in checks.MODES
    shape: Any = normalized_shape
    if not known or type(shape) is not tuple:  # a tuple in a known call is a tuple of ints already
        shape = checks.shape_of(function, normalized_shape)
    # A float32 output that is rounded to a half afterwards costs more memory than the half input: save the input.
    if memory_efficient and rule in dtypes.OF_INPUT and dtypes.input_is_smaller(x, weight, bias, rule):
        memory_efficient = False

    if not known:
        if left_to_pytorch(x):
            return _by_pytorch(x, shape, weight, bias, eps, rms)
        if torch.jit.is_tracing():  # before the checks of shapes: a trace has tensors as sizes
            if autocasts(x):
                x, weight, bias = dtypes.autocast(x, shape, weight, bias, rule)
            checks.check_kinds(function, x, weight, bias)
            return _exportable(x, shape, weight, bias, eps, rms)
        checks.check_mode(options.memory_efficient)
        checks.check(function, x, shape, weight, bias, eps)
        if x.is_meta:
            memory_efficient = memory_efficient is not False  # a meta tensor has no values that could be at risk
        if autocasts(x):
            x, weight, bias = dtypes.autocast(x, shape, weight, bias, rule)
        # A mix of dtypes that the kernels do not have and PyTorch's rms_norm has: compute in the wider dtype.
        if rms and weight is not None and checks.mixed_by_pytorch_alone(x, weight):
            wide = torch.promote_types(x.dtype, weight.dtype)
            wider = Options(memory_efficient, rms, rule)
            output = norm(function, x.to(wide), shape, weight.to(wide), None, eps, wider)
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

    if differentiated(x, weight, bias):
        return autograd.apply(x, weight, bias, (shape, eps, rms, memory_efficient, owners), cached, pointers)[0]
    return cached(pointers)[0] if cached else engines.chosen(x).forward(x, shape, weight, bias, eps, rms)[0]


def _cached_launch(
    x: Tensor, normalized_shape: Any, weight: Parameter, bias: Parameter, eps: Any, rms: bool
) -> tuple[CachedLaunch | None, list[int]]:
    """Return the cached launch of this forward, or None, and the addresses to call it with.

    It is called before the arguments other than x are checked: a call that finds a cached launch needs no checks, which
    saves a small call a tenth of its time.
    """
    if not untraced() or not (x.is_cuda or engines.by_kernels(x)) or autocasts(x):
        return None, []
    key, pointers = norms.forward_signature(x, normalized_shape, weight, bias, eps, rms)
    return replay.find(key), pointers


def _laid_out(output: Tensor, x: Tensor) -> Tensor:
    """Return the output with channels last if x has channels last, as PyTorch's rms_norm does (its layer_norm not)."""
    if x.is_nested or transformed() or x.is_contiguous():
        return output
    for dims, layout in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if x.dim() == dims and x.is_contiguous(memory_format=layout):
            return output.contiguous(memory_format=layout)
    return output


def _by_pytorch(x: Tensor, shape: Shape, weight: Parameter, bias: Parameter, eps: float, rms: bool) -> Tensor:
    """Return PyTorch's own norm, which saves the input for its backward."""
    if rms:
        return torch.nn.functional.rms_norm(x, list(shape), weight, eps)
    return torch.nn.functional.layer_norm(x, list(shape), weight, bias, eps)


def _exportable(x: Tensor, shape: Shape, weight: Parameter, bias: Parameter, eps: float, rms: bool) -> Tensor:
    """Return a norm for tracers and ONNX, by ATen's layer_norm.

    RMSNorm is composed of elementary operations, because ONNX's exporter does not know ATen's rms_norm.
    """
    if rms:
        return vectorised.composed(x, shape, weight, bias, eps, rms)
    dtype = formulas.output_dtype(x, weight, bias)
    if x.dtype != dtype:  # ATen takes half parameters only with a half input, and returns the input's dtype
        wide = formulas.accumulator(x.dtype)
        x, weight, bias = x.to(wide), formulas.to(weight, wide), formulas.to(bias, wide)
    # `to` stands in every trace, because ATen's layer_norm returns float32 if the trace later runs under autocast.
    return torch.nn.functional.layer_norm(x, shape, weight, bias, eps).to(dtype)
