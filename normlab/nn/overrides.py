"""Pass a call on instead of computing it: to a `__torch_function__`, or to torch.fx as a node of its graph.

`normlab.nn.functional` calls `overridden` if a mode is active or an argument has a `__torch_function__`. The modules
call `leaf` for torch.fx's proxies.
"""

from collections.abc import Callable
from inspect import signature
from typing import Any, NoReturn

import torch
from torch.fx import Proxy, Tracer
from torch.overrides import handle_torch_function

from normlab.nn.private import has_hooks

_TORCH_NORM = torch.nn.LayerNorm(1, device="cpu")
"""A norm of torch.nn: `leaf` asks a tracer whether it keeps this module as one node."""


def overridden(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    """Return the result of a mode's or an argument's `__torch_function__` for this call of a public function.

    given: values for all of the function's parameters; values for other names are ignored.
    """
    first, *names = signature(function).parameters
    tensors = [given[name] for name in ("input", "weight", "bias")]
    return handle_torch_function(function, tensors, given[first], **{name: given[name] for name in names})


def leaf(module: torch.nn.Module, forward: Callable[..., Any], input: Any) -> Any:
    """Return the proxy of a node that calls the module, if the input is a proxy and the tracer keeps norms as nodes.

    Return None if the forward has to be traced: if the module is the traced root, or if a call of the module does more
    than this forward. The node would repeat a hook or a subclass's own forward when the graph runs.
    """
    if not isinstance(input, Proxy) or not isinstance(input.tracer, Tracer):
        return None
    if has_hooks(module) or "forward" in vars(module) or getattr(type(module), "forward", None) is not forward:
        return None
    path = input.tracer.path_of_module(module)
    if not path or not input.tracer.is_leaf_module(_TORCH_NORM, path):
        return None
    return input.tracer.create_proxy("call_module", path, (input,), {})


def cannot_be_scripted(module: torch.nn.Module) -> NoReturn:
    """Raise NotImplementedError. torch.jit.script calls this to get a module that it can compile."""
    raise NotImplementedError(
        f"torch.jit.script cannot compile {type(module).__name__}: use torch.jit.trace, or torch.export"
    )
