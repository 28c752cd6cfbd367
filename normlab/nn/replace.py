"""Swap a model's norms for normlab's, in place, parameters shared: torch.nn's, and RMSNorm classes like transformers'.

A class that is not torch.nn's own is recognised by its name, or transformers' name for its eps (T5LayerNorm is an
RMSNorm), its parameters and its eps, and then asked (`normlab.nn.comparing`). Where it and its replacement differ
(Gemma's weight stands for 1 + weight) it stays, and the report says why.

A swapped norm's output has the dtype that the old one's had, where the input's and the parameters' differ.
"""

from inspect import signature
from typing import Any

import torch
from torch.nn.utils import parametrize

from normlab.nn import checks
from normlab.nn.comparing import compared
from normlab.nn.modules import FusedLayerNorm, FusedRMSNorm
from normlab.nn.shapes import MemoryEfficient

Norm = FusedLayerNorm | FusedRMSNorm


class Replaced(list[tuple[str, type, type]]):
    """What was swapped: (name, old class, new class). `refused`: what looked like a norm and stayed, and why."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[tuple[str, type, str]] = []

    def __str__(self) -> str:
        """A line for each."""
        lines = [f"{name}: {old.__name__} -> {new.__name__}" for name, old, new in self]
        lines += [f"{name}: {old.__name__} stays: {why}" for name, old, why in self.refused]
        return "\n".join(lines) or "no norms"


def replace_norms(model: torch.nn.Module, memory_efficient: MemoryEfficient = "exact") -> Replaced:
    """Swap the norms of a model in place.

    Args:
        model: any module. It is no norm itself, for that could not be swapped in place.
        memory_efficient: what the backward keeps, as of `normlab.nn.layer_norm`.

    Returns:
        what was swapped and what was not; `print` shows it.

    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    >>> print(replace_norms(model, memory_efficient=True))
    1: LayerNorm -> FusedLayerNorm
    """
    checks.check_mode(memory_efficient)
    report = Replaced()
    known: dict[torch.nn.Module, Norm | str] = {}  # a norm used in two places stays one
    swaps: list[tuple[str, Norm]] = []
    for name, old in model.named_modules(remove_duplicate=False):
        if not _looks_like_a_norm(old):
            continue
        if old not in known:
            known[old] = "it is the model itself" if old is model else _made(old, memory_efficient)
        new = known[old]
        if isinstance(new, str):
            report.refused.append((name, type(old), new))
        else:
            report.append((name, type(old), type(new)))
            swaps.append((name, new))
    for name, new in swaps:  # all are made by now: an error has left the model as it was
        model.set_submodule(name, new)
    return report


def _looks_like_a_norm(module: torch.nn.Module) -> bool:
    if isinstance(module, (FusedLayerNorm, FusedRMSNorm)):
        return False
    if isinstance(module, (torch.nn.LayerNorm, torch.nn.RMSNorm)):
        return True
    parameters = dict(module.named_parameters())
    return (
        ("RMSNorm" in type(module).__name__ or hasattr(module, "variance_epsilon"))
        and list(parameters) == ["weight"] == [*dict(module.named_parameters()), *dict(module.named_buffers())]
        and parameters["weight"].dim() == 1
        and _eps(module) is not None
    )


def _eps(module: Any) -> float | None:
    return getattr(module, "eps", getattr(module, "variance_epsilon", None))


def _made(old: Any, memory_efficient: MemoryEfficient) -> Norm | str:
    """A norm with the old one's parameters, or why there is none."""
    if parametrize.is_parametrized(old):
        return "its parameters are parametrized"
    for name in ("weight", "bias"):  # pruned, say, or torch.nn.utils.weight_norm's: made anew before every forward
        value = getattr(old, name, None)
        if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
            return f"its {name} is no parameter"
    if "forward" in vars(old):
        return "its forward is one of its own, not its class's"
    buffers = [name for name, _ in old.named_buffers()]
    if buffers:
        return f"it has buffers: {', '.join(buffers)}"
    new: Norm
    if isinstance(old, torch.nn.LayerNorm):
        new = FusedLayerNorm(old.normalized_shape, old.eps, False, memory_efficient)
        new.bias = old.bias
    else:
        shape = tuple(getattr(old, "normalized_shape", () if old.weight is None else old.weight.shape))
        new = FusedRMSNorm(shape, _eps(old), False, memory_efficient)
    new.weight = old.weight
    new.elementwise_affine = old.weight is not None
    new.train(old.training)
    for name, value in vars(old).items():
        if "hook" in name:  # those of every kind, and what torch notes about them
            setattr(new, name, value)
    new.dtype_rule = "torch"
    if type(old) in (torch.nn.LayerNorm, torch.nn.RMSNorm):
        return new
    return _difference(old, new) or new


def _difference(old: torch.nn.Module, new: Norm) -> str | None:
    """How two norms differ; None if they do not, and then new's dtype_rule is old's."""
    parameter = next(old.parameters(), None)
    if parameter is not None and parameter.is_meta:
        return "its parameters are on the meta device, where it cannot be compared"
    try:
        difference = compared(old, new)
    except Exception as error:
        return f"it cannot be compared: {type(error).__name__}: {error}"
    taken = list(signature(old.forward).parameters.values())
    if difference is None and (len(taken) != 1 or str(taken[0]).startswith("*")):
        return f"its forward takes more than an input: {', '.join(map(str, taken))}"
    return difference
