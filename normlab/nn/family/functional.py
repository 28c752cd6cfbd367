"""The family's norms as functions, with torch.nn.functional's names, signatures and defaults.

Called by `normlab.nn.family.modules`. torch.fx and other users of `__torch_function__` see the functions here. Then the
kind of call chooses:

- Eager tensors go through an autograd function (`normlab.nn.family.autograd`), the cheapest way on the host.
- Compiled and exported calls, and fake or functional tensors, go through one operator that the graph shows
  (`normlab.nn.family.operators`).
- torch.func's transforms and forward mode go through PyTorch's differentiable operations.
- torch.jit's scripts and traces and the export to ONNX get ATen's operations.

Sums are in float32 (float64 for float64). The output has the input's dtype, whatever the parameters' dtype. As in
PyTorch (autocast_mode.cpp), autocast changes only group norm of CUDA tensors: it makes halves and the output float32.
"""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from normlab.nn.checks import HALVES, is_size, not_a_tensor
from normlab.nn.family import autograd, checks, operators, vectorised
from normlab.nn.family.norms import Given, Norm
from normlab.nn.private import differentiated, exporting, in_a_graph, transformed


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Return batch norm, with a mean for every channel, as `torch.nn.functional.batch_norm` does.

    Args:
        input: (N, C, *spatial), float16, bfloat16, float32 or float64; any strides.
        running_mean, running_var: (C,), or both None. Training updates them in place, evaluation normalises by them.
        weight, bias: (C,), each may be None. Parameters have the input's dtype, or are float32 beside a half input.
        training: normalise by the statistics of the input.
        momentum: the share of the new statistics in the running ones.
        eps: added to the biased variance.

    Raises:
        RuntimeError, ValueError, TypeError, NotImplementedError: PyTorch's errors, in PyTorch's words.
    """
    if has_torch_function_variadic(input, running_mean, running_var, weight, bias):
        tensors = input, running_mean, running_var, weight, bias
        return handle_torch_function(batch_norm, tensors, *tensors, training, momentum, eps)
    if torch.jit.is_scripting():
        return torch.nn.functional.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    else:  # in a branch, because TorchScript leaves out only branches
        norm = Norm("batch", None, training)
        return _norm(batch_norm, norm, Given(input, running_mean, running_var, weight, bias, momentum, eps))


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Return instance norm, with a mean for every sample's channel, as `torch.nn.functional.instance_norm` does.

    Arguments and errors are those of `batch_norm`; `use_input_stats` is its `training`. The running statistics are
    updated with the average over the samples.
    """
    if has_torch_function_variadic(input, running_mean, running_var, weight, bias):
        tensors = input, running_mean, running_var, weight, bias
        return handle_torch_function(instance_norm, tensors, *tensors, use_input_stats, momentum, eps)
    if torch.jit.is_scripting():
        return torch.nn.functional.instance_norm(
            input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps
        )
    else:  # in a branch, because TorchScript leaves out only branches
        norm = Norm("instance", None, use_input_stats)
        return _norm(instance_norm, norm, Given(input, running_mean, running_var, weight, bias, momentum, eps))


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Return group norm, with a mean for every sample's group of channels, as `torch.nn.functional.group_norm` does."""
    if has_torch_function_variadic(input, weight, bias):
        return handle_torch_function(group_norm, (input, weight, bias), input, num_groups, weight, bias, eps)
    if torch.jit.is_scripting():
        return torch.nn.functional.group_norm(input, num_groups, weight, bias, eps)
    else:
        if not isinstance(num_groups, (int, torch.SymInt)) and is_size(num_groups):  # such as numpy's ints
            num_groups = int(num_groups)
        return _norm(group_norm, Norm("group", num_groups, True), Given(input, None, None, weight, bias, 0.0, eps))


def _norm(function: Any, norm: Norm, given: Given) -> Tensor:
    x = given.x
    if not isinstance(x, Tensor):
        raise not_a_tensor(function, "input", x)
    if norm.kind == "group" and x.is_cuda and torch.is_autocast_enabled("cuda"):
        given = _in_float32(given)
        x = given.x
    if exporting():
        return _exportable(norm, given)
    if norm.kind == "batch" and x.shape == (0,):
        return x.clone()  # as PyTorch: without channels nothing is checked
    checks.check(function, norm, given)
    if transformed():
        checks.check_batched(norm, given)
        return vectorised.forward(norm, given)[0]
    if norm.kind != "batch":  # the backward keeps this copy, as in PyTorch; batch norm takes any strides
        given = given._replace(x=norm.in_layout(x))
    if in_a_graph(x):
        return operators.apply(norm, given)
    if differentiated(x, *given[1:-2]):  # without momentum and eps
        return autograd.FamilyNorm.apply(norm, *given)
    return autograd.chosen(x).forward(norm, given)[0]


def _in_float32(given: Given) -> Given:
    """Return the arguments as autocast converts them: halves become float32."""
    return Given._make(one.float() if isinstance(one, Tensor) and one.dtype in HALVES else one for one in given)


def _exportable(norm: Norm, given: Given) -> Tensor:
    """Return PyTorch's own norm, for tracers and ONNX. `to` is for autocast, under which a trace may run in float32."""
    x, running_mean, running_var, weight, bias, momentum, eps = given
    if norm.groups is not None:
        return torch.nn.functional.group_norm(x, norm.groups, weight, bias, eps).to(x.dtype)
    function = torch.nn.functional.batch_norm if norm.kind == "batch" else torch.nn.functional.instance_norm
    return function(x, running_mean, running_var, weight, bias, norm.own, momentum, eps).to(x.dtype)
