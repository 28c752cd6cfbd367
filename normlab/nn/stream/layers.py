"""Fuse the additions and norms of a model's layers: give each layer a class whose forward is rewritten.

The new class is a subclass of the old one with the old name, so `isinstance`, parameters' names, hooks, attributes and
methods stay. A layer gets it only if the rewritten forward computes the same (`normlab.nn.stream.compare`), which is
asked once for layers of one class that have modules of the same classes.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from normlab.nn.modules import FusedLayerNorm, FusedRMSNorm
from normlab.nn.stream import calls
from normlab.nn.stream.compare import difference
from normlab.nn.stream.rewrite import CALLS, Rewritten, rewritten, wrappers


class FusedLayer(torch.nn.Module):
    """The base of the classes that `fused_class` makes."""

    fused_from: tuple[Any, tuple[str, ...]]
    """The old class, and the names of its norms."""
    sites: tuple[tuple[str, str], ...]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Return how copies and pickles make the class again: pickle cannot import it, because no module holds it."""
        return _blank, self.fused_from, self.__getstate__()


def fuse(
    model: torch.nn.Module, become: Callable[[Any, Any], None], obstacle: Callable[[Any], bool]
) -> tuple[list[tuple[str, type, tuple[tuple[str, str], ...]]], list[tuple[str, type, str]]]:
    """Fuse every layer of a model that can be; return what is fused and what is not, as `Report` has them.

    become, obstacle: of `normlab.nn.stand_in`: they set a module's class, and tell a module with a forward of its own.
    """
    fused, unfused, found = [], [], {}
    for name, layer in model.named_modules():
        norms = tuple(own for own, child in layer.named_children() if _is_over_last_dimension(child))
        if not norms:
            continue
        if isinstance(layer, FusedLayer):
            fused.append((name, layer.fused_from[0], layer.sites))
            continue
        kind = type(layer)
        if obstacle(layer):
            result: Any = "its forward is one of its own, not its class's"
        else:
            key = kind, norms, tuple((own, type(child)) for own, child in layer.named_children())
            if key not in found:
                found[key] = _proved(layer, norms)
            result = found[key]
        if isinstance(result, str):
            unfused.append((name, kind, result))
        else:
            become(layer, result)
            fused.append((name, kind, result.sites))
    return fused, unfused


def _is_over_last_dimension(module: torch.nn.Module) -> bool:
    """Return True for a LayerNorm or RMSNorm of normlab's over the last dimension alone."""
    if not isinstance(module, (FusedLayerNorm, FusedRMSNorm)) or len(module.normalized_shape) != 1:
        return False
    plan = getattr(module, "made_of", (None, None))[1]
    return plan is None or not plan.channels


def _proved(layer: torch.nn.Module, norms: tuple[str, ...]) -> Any:
    """Return the class that fuses a layer, or the reason why there is none.

    The model has its new norms already, so no error of a layer's class may get out.
    """
    kind: Any = type(layer)
    try:
        made = fused_class(kind, norms)
        return made if isinstance(made, str) else difference(layer, made, norms) or made
    except Exception as error:
        return f"its class cannot be rewritten: {type(error).__name__}: {error}"


@cache
def fused_class(old: Any, norms: tuple[str, ...]) -> Any:
    """Return the class that replaces the class `old`, or the reason why there is none."""
    new = rewritten(old, norms)
    if not isinstance(new, Rewritten):
        return new
    members = {"__module__": __name__, "__doc__": old.__doc__, "fused_from": (old, norms), "sites": new.sites}
    made: Any = type(old)(old.__name__, (FusedLayer, old), members | {CALLS: calls, "forward": new.forward})
    # A base may wrap the forward of every class that is made of it, as transformers' GradientCheckpointingLayer does.
    if wrappers(made.forward) < wrappers(old.forward):
        return "its forward is wrapped in a function that is none of its decorators"
    return made


def _blank(old: Any, norms: tuple[str, ...]) -> torch.nn.Module:
    """Return an empty layer to be filled with a state: fused, or of the old class where there is no source to fuse."""
    kind = fused_class(old, norms)
    return old.__new__(old) if isinstance(kind, str) else kind.__new__(kind)
