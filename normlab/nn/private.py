"""The private names of PyTorch that `normlab.nn` uses, each with a fallback for a PyTorch that lacks the name.

`normlab.host.arrays` has the private names that the host functions use, with fallbacks, too. A comment says why the
nearest public function does not do. Every call of a norm calls these functions, so each is the fastest one.
"""

from collections.abc import Callable
from contextlib import nullcontext
from copy import copy
from operator import attrgetter
from typing import Any, Literal

import torch
import torch._subclasses
import torch.utils._device
import torch.utils.checkpoint
from torch import Tensor
from torch.autograd import forward_ad

PLAIN = (Tensor, torch.nn.Parameter)


def _found(path: str, otherwise: Any) -> Any:
    """Return `torch.<path>`, or `otherwise` if this PyTorch does not have it."""
    found: Any = torch
    for name in path.split("."):
        found = getattr(found, name, None)
    return otherwise if found is None else found


# There is no public function for dispatch modes: torch.overrides has function modes only.
_dispatch_modes: Callable[[], int] = _found("_C._len_torch_dispatch_stack", lambda: 0)
_mode_of_kind = _found("_C._get_dispatch_mode", lambda kind: None)
_dispatch_mode_at = _found("_C._get_dispatch_stack_at", lambda index: None)
# The modes of selective checkpoints have no public names: the first forward's, and the second's.
_KEEPING = tuple(_found(f"utils.checkpoint._{name}TorchDispatchMode", None) for name in ("Caching", "Cached"))
_kinds = _found("_C._TorchDispatchModeKey", None)
_TRACERS = [getattr(_kinds, name) for name in ("PROXY", "FAKE", "FUNCTIONAL") if hasattr(_kinds, name)]
_key_is_included = _found("_C._dispatch_tls_is_dispatch_key_included", lambda key: False)
_PRE_DISPATCH = _found("_C.DispatchKey.PreDispatch", None)
# torch.func cannot be asked for its transforms; the level of torch.autograd.forward_ad alone shows forward mode.
_transforms_active = _found("_C._are_functorch_transforms_active", lambda: False)
_of_torch_func = _found("_C._functorch.is_functorch_wrapped_tensor", lambda tensor: False)
_of_grads_batched = _found("_C._functorch.is_legacy_batchedtensor", lambda tensor: False)
_is_vmapped = _found("_C._functorch.is_batchedtensor", lambda tensor: False)
_level = _found("_C._functorch.maybe_get_level", lambda tensor: None)
_unwrapped = _found("_C._functorch.get_unwrapped", lambda tensor: tensor)
# Publicly only torch.export makes fake tensors, and for a whole program.
FakeTensorMode: Any = _found("_subclasses.FakeTensorMode", None)
# torch.is_autocast_enabled needs a device type, and finding this takes ten times as long.
any_autocast: Callable[[], bool] = _found("_C._is_any_autocast_enabled", lambda: True)
# torch.overrides has only modes that do more, none that do less.
without_function_modes: Any = _found("_C.DisableTorchFunction", nullcontext)
_function_modes: Callable[[], int] = _found("_C._len_torch_function_stack", lambda: 0)
_function_mode_at = _found("_C._get_function_stack_at", lambda index: None)
_DeviceContext = _found("utils._device.DeviceContext", None)
# Module.__call__ asks this, too: hooks of torch.nn.modules.module.register_module_forward_hook and others of its kind.
any_global_hooks: Callable[[], bool] = _found("nn.modules.module._has_any_global_hook", lambda: False)
_saving_hooks = _found("_C._autograd._top_saved_tensors_default_hooks", lambda ignore: None)
_graph_task: Callable[[], int] = _found("_C._current_graph_task_id", lambda: -1)


# A tensor's version counter has no public name. Where it is missing, no version equals another.
version_of: Callable[[Tensor], Any] = attrgetter("_version") if hasattr(Tensor, "_version") else lambda tensor: object()
# ATen's reshape whose result autograd does not take for a view, so that the caller may write to it.
unsafe_view: Callable[[Tensor, Any], Tensor] = _found(
    "ops.aten._unsafe_view", lambda tensor, shape: tensor.reshape(shape).clone()
)


def parameter_of(module: torch.nn.Module, name: str) -> Tensor | None:
    """Return a module's parameter in a quarter of the time of `getattr`, which looks in every other place first.

    `getattr` remains for a module that has the parameter elsewhere, as parametrizations do.
    """
    own: Any = getattr(module, "_parameters", {})
    return own[name] if name in own and name not in module.__dict__ else getattr(module, name)


def has_hooks(module: torch.nn.Module) -> bool:
    """Return True if a call of the module calls forward hooks."""
    return bool(getattr(module, "_forward_hooks", True) or getattr(module, "_forward_pre_hooks", True))


def without_hooks(module: Any) -> Any:
    """Return a shallow copy of a module without hooks, accelerate's included.

    A deep copy of a hook would copy all that the hook refers to, which may be the whole model.
    """
    bare = copy(module)
    for name, value in vars(module).items():
        if "hook" in name and isinstance(value, dict):
            vars(bare)[name] = type(value)()
    for name in ("forward", "_old_forward", "_hf_hook"):  # accelerate sets these
        vars(bare).pop(name, None)
    return bare


def _forward_mode() -> bool:
    return getattr(forward_ad, "_current_level", -1) >= 0


def _traced_before_autograd() -> bool:
    return _PRE_DISPATCH is not None and _key_is_included(_PRE_DISPATCH)


def in_a_graph(x: Tensor) -> bool:
    """Return True if the norm is compiled or traced, or if its input's class has to see operators."""
    if torch.compiler.is_compiling() or type(x) not in PLAIN or _traced_before_autograd():
        return True
    return _dispatch_modes() > 0 and any(_mode_of_kind(kind) is not None for kind in _TRACERS)


def untraced() -> bool:
    """Return True if no tracer, transform or dispatch mode is active. A cached launch would bypass any of them."""
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing() or _dispatch_modes() or _traced_before_autograd()
    return not (traced or transformed())


def results_are_kept() -> bool:
    """Return True in the forwards of a selective checkpoint, which may keep each result and refuses writes into it."""
    return any(type(_dispatch_mode_at(index)) in _KEEPING for index in range(_dispatch_modes()))


def function_mode_active() -> bool:
    """Return True if a torch function mode is active other than the default device, which changes no norm."""
    return any(type(_function_mode_at(index)) is not _DeviceContext for index in range(_function_modes()))


def autocasts(x: Tensor) -> bool:
    """Return True if autocast is on for a tensor; a meta tensor has no device that it could be on for."""
    # `any_autocast` takes a tenth of the time of `is_autocast_enabled`, so it is asked first.
    return any_autocast() and not x.is_meta and torch.is_autocast_enabled(x.device.type)


def differentiated(*tensors: Tensor | None) -> bool:
    """Return True if autograd must be able to compute gradients for one of the tensors."""
    return torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in tensors)


def exporting() -> bool:
    """Return True while torch.jit.trace or the export to ONNX looks on."""
    return torch.jit.is_tracing() or (torch.compiler.is_exporting() and torch.onnx.is_in_onnx_export())


def left_to_pytorch(x: Tensor) -> bool:
    """Return True for a tensor whose norms PyTorch computes, because it knows the tensor's layout."""
    # by name, because importing the types takes up to 0.4 s
    return x.is_nested or (type(x) not in PLAIN and type(x).__name__ in ("DTensor", "MaskedTensor"))


def by_operations(x: Tensor) -> bool:
    """Return True for a call that the norms beside the plain ones leave to PyTorch's operations."""
    return left_to_pytorch(x) or exporting() or transformed()


def transformed() -> bool:
    """Return True inside a transform of torch.func, and in forward mode."""
    return _transforms_active() or _forward_mode()


def batched(gradient: Tensor) -> bool:
    """Return True if a gradient stands for a batch of gradients, made by is_grads_batched or by vmap."""
    return _of_grads_batched(gradient) or _of_torch_func(gradient)


def vmap_levels(tensor: Tensor) -> set[int]:
    """Return the levels of the vmaps that a tensor is batched by."""
    levels = set()
    while _of_torch_func(tensor):
        if _is_vmapped(tensor):
            levels.add(_level(tensor))
        tensor = _unwrapped(tensor)
    return levels


def in_a_recomputation() -> bool:
    """Return True while a backward runs the forward of a non-reentrant checkpoint again. Its hooks give this away.

    A reentrant checkpoint does not count: its first run saves nothing that the second run would have to match.
    """
    return _graph_task() >= 0 and _saving_hooks(True) is not None


def backward_form(gradient: Tensor) -> Literal["operator", "operations"] | None:
    """Return the form in which PyTorch has to see the backward of this gradient; None: it need not see any of it.

    "operator": one operator, which a compiler or a tracer puts into its graph. "operations": differentiable operations,
    for second derivatives, for a batch of gradients and for a gradient with a tangent.
    """
    if torch.is_grad_enabled():
        return "operations"
    if torch.compiler.is_compiling():  # the compiler knows no other case, and cannot trace the calls below
        return "operator"
    if _forward_mode() or batched(gradient):
        return "operations"
    return "operator" if in_a_graph(gradient) else None


def direct_apply(function: Any) -> Callable[..., Any]:
    """Return an autograd function's apply without the Python that torch wraps around forward and backward.

    The wrapper of the forward serves torch.func's transforms and takes 3 of 60 µs. The caller of apply has made sure
    that no transform is active. The wrapper of the backward serves other ways to write a backward and takes 0.6 µs.
    """
    backward = getattr(function, "_backward_cls", None)
    if backward is None:
        return function.apply
    backward.apply = function.backward
    return super(torch.autograd.Function, function).apply
