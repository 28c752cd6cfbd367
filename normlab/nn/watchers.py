"""Who looks on while a norm is computed: graphs, which want to see operators, and transforms, which want to see all."""

from typing import Literal

import torch
from torch import Tensor
from torch.autograd import forward_ad

_of_grads_batched = torch._C._functorch.is_legacy_batchedtensor
_of_torch_func = torch._C._functorch.is_functorch_wrapped_tensor
_included, _PRE_DISPATCH = torch._C._dispatch_tls_is_dispatch_key_included, torch._C.DispatchKey.PreDispatch
PLAIN = (Tensor, torch.nn.Parameter)
_MODES = torch._C._TorchDispatchModeKey
_TRACERS = _MODES.PROXY, _MODES.FAKE, _MODES.FUNCTIONAL


def in_a_graph(x: Tensor) -> bool:
    """Is the norm compiled or traced, or its input a tensor that wants to see operators?"""
    if torch.compiler.is_compiling() or type(x) not in PLAIN:
        return True
    if _included(_PRE_DISPATCH):  # a tracer that looks on before autograd does
        return True
    modes = torch._C._len_torch_dispatch_stack() > 0  # of any kind, a user's own among them: asked in 40 ns
    return modes and any(torch._C._get_dispatch_mode(kind) is not None for kind in _TRACERS)


def unwatched() -> bool:
    """Does nobody look on of whom a recording's shortcut would not know? It sees other tensors, and what wraps them."""
    if torch.compiler.is_compiling():  # which could not look into what follows
        return False
    return forward_ad._current_level < 0 and not torch._C._len_torch_dispatch_stack()


def transformed() -> bool:
    """Does torch.func, or forward mode, look on?"""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def batched(gradient: Tensor) -> bool:
    """Is it a whole batch of them, `is_grads_batched`'s or vmap's, that only looks like one?"""
    return _of_grads_batched(gradient) or _of_torch_func(gradient)


def onlooker(gradient: Tensor) -> Literal["graph", "all"] | None:
    """Who looks on while gradients are computed from this one, of which a backward is not told otherwise.

    "all": who has to see each operation, for second derivatives, for a batch of gradients, or for one with a tangent.
    """
    if torch.is_grad_enabled():
        return "all"
    if torch.compiler.is_compiling():  # which knows neither of the others, and could not look into what asks for them
        return "graph"
    if forward_ad._current_level >= 0 or batched(gradient):
        return "all"
    return "graph" if in_a_graph(gradient) else None
