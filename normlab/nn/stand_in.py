"""A norm of normlab's in the place of a norm of another class, whose interface it keeps.

For torch.nn's own classes there is one of normlab's. Otherwise the class is made from the old class and normlab's: the
old name, attributes and methods with normlab's forward. So `isinstance` holds for both, weights keep their names, and
a forward's argument its keyword.
"""

from collections.abc import Callable
from copy import copy
from functools import cache, partial, update_wrapper
from inspect import Parameter, Signature
from types import MethodType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from normlab.nn.modules import FusedLayerNorm, FusedRMSNorm
from normlab.nn.shapes import MemoryEfficient


class Plan(NamedTuple):
    """How a norm of normlab's stands in for another.

    own: normlab's class. keyword: what the old forward calls its input. weight, bias, eps: the names of the old norm's
    attributes that are normlab's of these names, None where it has none. value: of eps, where the old norm has no
    attribute for it. channels: the dimension that is normalised over is 1 (of N, C, *spatial), not the last one; the
    output has it last in memory ("moved"), or lies there as the input does ("as input").
    """

    own: Any
    keyword: str = "input"
    weight: str | None = "weight"
    bias: str | None = "bias"
    eps: str | None = "eps"
    value: float | None = None
    channels: Literal[False, "moved", "as input"] = False

    @property
    def rows(self) -> bool:
        """Does normlab's class have memory_efficient and dtype_rule?"""
        return issubclass(self.own, (FusedLayerNorm, FusedRMSNorm))


class StandIn(torch.nn.Module):
    """What the classes that `stand_in` makes have in common."""

    made_of: tuple[Any, Plan]
    """The old class, and the plan: of the class, and of each norm that `made` has made."""

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Copies and pickles make the class again, which no module holds."""
        return _blank, self.made_of, self.__getstate__()

    def extra_repr(self: Any) -> str:
        """What the old class says, then normlab's class and the mode."""
        old, plan = self.made_of
        said = [old.extra_repr(self)]
        if old.extra_repr is torch.nn.Module.extra_repr:  # nothing
            said = [f"{tuple(self.normalized_shape)}, eps={self.eps}"]
        said.append(f"normlab.nn.{plan.own.__name__}")
        if plan.rows:
            said.append(f"memory_efficient={self.memory_efficient!r}")
        return ", ".join(said)


@cache
def stand_in(old: Any, plan: Plan) -> Any:
    """Return the class of norms that stand in for those of class old."""
    if issubclass(plan.own, old):
        return plan.own
    roles = {"weight": plan.weight, "bias": plan.bias, "eps": plan.eps}
    others = {role: _alias(name) for role, name in roles.items() if name is not None and name != role}
    members = {"__module__": __name__, "__doc__": old.__doc__, "made_of": (old, plan), "forward": _forward(plan)}
    return type(old.__name__, (StandIn, old, plan.own), members | others)


def made(old: Any, plan: Plan, memory_efficient: MemoryEfficient = False) -> Any:
    """Return a norm that stands in for old, and shares its parameters, buffers and hooks."""
    its_class: Any = type(old)
    kind = stand_in(its_class, plan)
    new = kind.__new__(kind)
    vars(new).update(vars(old))
    for name in ("_parameters", "_buffers", "_modules"):
        vars(new)[name] = copy(vars(old)[name])
    become(new, kind)
    new.made_of = its_class, plan
    if plan.rows:
        for role in ("weight", "bias"):
            if not hasattr(new, role):
                new.register_parameter(role, None)
        parameter = new.bias if new.weight is None else new.weight
        settings: dict[str, Any] = {"eps": plan.value, "elementwise_affine": parameter is not None}
        if parameter is not None:
            settings["normalized_shape"] = tuple(parameter.shape)
        for name, value in settings.items():
            if not hasattr(new, name):
                setattr(new, name, value)
        new.memory_efficient, new.dtype_rule = memory_efficient, "input"
    return new


def become(norm: torch.nn.Module, kind: Any) -> None:
    """Give a norm a class, and the class's forward to those who hold it in the norm: accelerate's hooks."""
    norm.__class__ = kind
    held = vars(norm)
    for name in ("_old_forward", "forward"):
        if isinstance(held.get(name), MethodType):
            held[name] = MethodType(kind.forward, norm)
    if isinstance(held.get("forward"), partial):
        held["forward"] = update_wrapper(partial(held["forward"].func, norm), held["_old_forward"])


def has_its_own_forward(norm: torch.nn.Module) -> bool:
    """Is its forward neither its class's, nor its class's with accelerate's hooks around it?"""
    held = vars(norm)
    forward = held.get("forward")
    if isinstance(forward, partial) and "_hf_hook" in held and forward.args == (norm,):
        forward = held.get("_old_forward", forward)
    return forward is not None and getattr(forward, "__func__", None) is not type(norm).forward


def _blank(old: Any, plan: Plan) -> StandIn:
    kind = stand_in(old, plan)
    return kind.__new__(kind)


def _alias(name: str) -> property:
    """normlab's name for what the old class calls otherwise. No attrgetter, which Dynamo does not know."""
    return property(lambda norm: getattr(norm, name))


def _forward(plan: Plan) -> Callable[..., Tensor]:
    """normlab's forward, over the plan's dimension, of an argument with the plan's name."""
    compute = _over_channels(plan) if plan.channels else plan.own.forward
    keyword = plan.keyword
    if keyword == "input" and not plan.channels:
        return compute

    def forward(self: Any, *given: Tensor, **named: Tensor) -> Tensor:
        if named:
            if [*named] != [keyword]:
                raise TypeError(f"forward() takes an input called {keyword}, got {', '.join(named)}")
            given = *given, named[keyword]
        return compute(self, *given)

    kind = Parameter.POSITIONAL_OR_KEYWORD
    forward.__signature__ = Signature([Parameter("self", kind), Parameter(keyword, kind)])  # type: ignore[attr-defined]
    return forward


def _over_channels(plan: Plan) -> Callable[..., Tensor]:
    compute, moved = plan.own.forward, plan.channels == "moved"

    def forward(self: Any, input: Tensor) -> Tensor:
        output = compute(self, input.movedim(1, -1)).movedim(-1, 1)
        return output if moved else torch.empty_like(input, dtype=output.dtype).copy_(output)

    return forward
