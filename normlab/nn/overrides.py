"""Calls that are not computed but handed on: to a `__torch_function__`, or to torch.fx as a node of its graph.

Called by `normlab.nn.functional` in each call, and by the modules for torch.fx's proxies.
"""

from collections.abc import Callable
from inspect import signature
from typing import Any, NoReturn

import torch
from torch.fx import Proxy, Tracer
from torch.overrides import handle_torch_function

_TORCHS = torch.nn.LayerNorm(1, device="cpu")
"""A norm of torch.nn, to ask a tracer about."""


def overridden(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    """Return what a mode's or an argument's `__torch_function__` makes of this call of a public function.

    given: values for all of the function's parameters, and perhaps more.
    """
    first, *names = signature(function).parameters
    tensors = [given[name] for name in ("input", "weight", "bias")]
    return handle_torch_function(function, tensors, given[first], **{name: given[name] for name in names})


def leaf(module: torch.nn.Module, forward: Callable[..., Any], input: Any) -> Any:
    """Return the proxy of a node that calls the module, if the input is one and the tracer makes torch.nn's norms such.

    None where the forward has to be traced: that of the module which the graph is made of, and where a call does more
    than this forward, which would be done again when the graph runs: hooks, and a subclass's own forward.
    """
    if not isinstance(input, Proxy) or not isinstance(input.tracer, Tracer):
        return None
    hooks = module._forward_hooks or module._forward_pre_hooks
    if hooks or "forward" in vars(module) or getattr(type(module), "forward", None) is not forward:
        return None
    path = input.tracer.path_of_module(module)
    if not path or not input.tracer.is_leaf_module(_TORCHS, path):
        return None
    return input.tracer.create_proxy("call_module", path, (input,), {})


def cannot_be_scripted(module: torch.nn.Module) -> NoReturn:
    """Raise NotImplementedError: torch.jit.script asks for a module that it can compile."""
    raise NotImplementedError(
        f"torch.jit.script cannot compile {type(module).__name__}: use torch.jit.trace, or torch.export"
    )
