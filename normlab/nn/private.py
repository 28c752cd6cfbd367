"""Everything that `normlab.nn` asks of PyTorch by a private name, and what is assumed where PyTorch lacks it.

The public functions that come nearest are named at each. All of these are asked in every call, so that each is the
quickest way to ask.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch._subclasses
from torch import Tensor
from torch.autograd import forward_ad

PLAIN = (Tensor, torch.nn.Parameter)


def _found(path: str, otherwise: Any) -> Any:
    """Return `torch.<path>`, or something else where this PyTorch does not have it."""
    found: Any = torch
    for name in path.split("."):
        found = getattr(found, name, None)
    return otherwise if found is None else found


# No public question: torch.overrides tells of function modes only.
_dispatch_modes: Callable[[], int] = _found("_C._len_torch_dispatch_stack", lambda: 0)
_mode_of_kind = _found("_C._get_dispatch_mode", lambda kind: None)
_kinds = _found("_C._TorchDispatchModeKey", None)
_TRACERS = [getattr(_kinds, name) for name in ("PROXY", "FAKE", "FUNCTIONAL") if hasattr(_kinds, name)]
_key_is_included = _found("_C._dispatch_tls_is_dispatch_key_included", lambda key: False)
_PRE_DISPATCH = _found("_C.DispatchKey.PreDispatch", None)
# torch.func has no question for its transforms; torch.autograd.forward_ad's level is the only trace of forward mode.
_transforms_active = _found("_C._are_functorch_transforms_active", lambda: False)
_of_torch_func = _found("_C._functorch.is_functorch_wrapped_tensor", lambda tensor: False)
_of_grads_batched = _found("_C._functorch.is_legacy_batchedtensor", lambda tensor: False)
_is_vmapped = _found("_C._functorch.is_batchedtensor", lambda tensor: False)
_level = _found("_C._functorch.maybe_get_level", lambda tensor: None)
_unwrapped = _found("_C._functorch.get_unwrapped", lambda tensor: tensor)
# torch.export makes fake tensors too, but of a whole program.
FakeTensorMode: Any = _found("_subclasses.FakeTensorMode", None)
# torch.is_autocast_enabled wants a device type, which takes ten times as long to find.
any_autocast: Callable[[], bool] = _found("_C._is_any_autocast_enabled", lambda: True)
_saving_hooks = _found("_C._autograd._top_saved_tensors_default_hooks", lambda ignore: None)
_graph_task: Callable[[], int] = _found("_C._current_graph_task_id", lambda: -1)


def _forward_mode() -> bool:
    return getattr(forward_ad, "_current_level", -1) >= 0


def in_a_graph(x: Tensor) -> bool:
    """Return True if the norm is compiled or traced, or its input is a tensor that has to see operators."""
    if torch.compiler.is_compiling() or type(x) not in PLAIN:
        return True
    if _PRE_DISPATCH is not None and _key_is_included(_PRE_DISPATCH):  # a tracer that comes before autograd
        return True
    return _dispatch_modes() > 0 and any(_mode_of_kind(kind) is not None for kind in _TRACERS)


def unwatched() -> bool:
    """Return True if no tracer, transform or dispatch mode is active that a cached launch would pass by."""
    return not (torch.compiler.is_compiling() or _dispatch_modes() or transformed())


def transformed() -> bool:
    """Return True inside a transform of torch.func, and in forward mode."""
    return _transforms_active() or _forward_mode()


def batched(gradient: Tensor) -> bool:
    """Return True for a batch of gradients that looks like one: is_grads_batched's or vmap's."""
    return _of_grads_batched(gradient) or _of_torch_func(gradient)


def vmap_levels(tensor: Tensor) -> set[int]:
    """Return the levels of vmap that go over a tensor."""
    levels = set()
    while _of_torch_func(tensor):
        if _is_vmapped(tensor):
            levels.add(_level(tensor))
        tensor = _unwrapped(tensor)
    return levels


def in_a_recomputation() -> bool:
    """Return True while a backward runs a checkpointed forward again: the non-reentrant kind, which has hooks.

    A reentrant one has saved nothing in its first run, so that its second run need not save the same.
    """
    return _graph_task() >= 0 and _saving_hooks(True) is not None


def onlooker(gradient: Tensor) -> Literal["graph", "all"] | None:
    """Return what has to see how gradients are computed from this one: None, "graph" (operators) or "all" (each
    operation, for second derivatives, for a batch of gradients or for one with a tangent).
    """
    if torch.is_grad_enabled():
        return "all"
    if torch.compiler.is_compiling():  # which knows neither of the others, and could not look into what asks for them
        return "graph"
    if _forward_mode() or batched(gradient):
        return "all"
    return "graph" if in_a_graph(gradient) else None


def direct_apply(function: Any) -> Callable[..., Any]:
    """Return an autograd function's apply without the Python that torch wraps around forward and backward.

    The wrapper of the forward is for torch.func's transforms (3 of 60 µs), that of the backward for other ways to write
    one (0.6 µs); the caller has seen that no transform is active.
    """
    backward = getattr(function, "_backward_cls", None)
    if backward is None:
        return function.apply
    backward.apply = function.backward
    return super(torch.autograd.Function, function).apply
