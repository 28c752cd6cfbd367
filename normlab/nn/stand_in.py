"""Make the norm of normlab's that replaces a norm of another class and keeps the old class's interface.

normlab has a subclass for each of torch.nn's own classes, and this subclass replaces them. For any other class a new
class is made from the old class and normlab's: it has the old name, attributes and methods, and normlab's forward. So
`isinstance` holds for both classes, weights keep their names, and the forward's argument keeps its keyword.
"""

from collections.abc import Callable
from copy import copy
from functools import cache, partial, update_wrapper
from inspect import Parameter, Signature
from types import MethodType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from normlab.nn.gated_norm.modules import GatedRMSNorm
from normlab.nn.gated_norm.stand_in import gated
from normlab.nn.modules import FusedLayerNorm, FusedRMSNorm
from normlab.nn.shapes import MemoryEfficient
from normlab.nn.stream.calls import offset_norm


class Plan(NamedTuple):
    """How a norm of normlab's stands in for another.

    own: normlab's class. keyword: the old forward's name for its input. weight, bias, eps: the names of the old norm's
    attributes with these meanings, None if it has no such attribute. value: the eps of an old norm without an attribute
    for it. channels: False to normalise over the last dimensions. Otherwise the norm goes over dimension 1, of (N, C,
    *spatial), and the output has this dimension last in memory ("moved") or has the input's layout ("as input").
    offset: gamma is weight + offset; other than 0 for RMSNorm over the last dimension alone. gate: the old forward's
    name for its second input, the gate; None if it takes no gate. optional: the old forward takes its first input
    alone, too. before: the norm comes before the gate, as `norm_before_gate` says.
    """

    own: Any
    keyword: str = "input"
    weight: str | None = "weight"
    bias: str | None = "bias"
    eps: str | None = "eps"
    value: float | None = None
    channels: Literal[False, "moved", "as input"] = False
    offset: float = 0.0
    gate: str | None = None
    optional: bool = False
    before: bool = True

    @property
    def rows(self) -> bool:
        """Return True if normlab's class is a norm over rows, with memory_efficient and dtype_rule."""
        return issubclass(self.own, (FusedLayerNorm, FusedRMSNorm, GatedRMSNorm))


class StandIn(torch.nn.Module):
    """The base of the classes that `stand_in` makes."""

    made_of: tuple[Any, Plan]
    """The old class and the plan: of a class, and of each norm that `made` returns, whose class may be normlab's."""

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Return how copies and pickles make the class again: pickle cannot import it, because no module holds it."""
        return _blank, self.made_of, self.__getstate__()

    def extra_repr(self: Any) -> str:
        """Return the old class's text, then normlab's class and the mode."""
        old, plan = self.made_of
        said = [old.extra_repr(self)]
        if old.extra_repr is torch.nn.Module.extra_repr:  # Module's own returns nothing
            said = [f"{tuple(self.normalized_shape)}, eps={self.eps}"]
        said.append(f"normlab.nn.{plan.own.__name__}")
        if plan.rows:
            said.append(f"memory_efficient={self.memory_efficient!r}")
        if plan.gate:
            said.append(f"norm_before_gate={plan.before}")
        if plan.offset:
            said.append(f"offset={plan.offset:g}")
        return ", ".join(said)


@cache
def stand_in(old: Any, plan: Plan) -> Any:
    """Return the class that replaces the class `old` by this plan."""
    if issubclass(plan.own, old):
        return plan.own
    # normlab's forward asks for weight, bias and eps: properties stand for attributes that have other names.
    roles = {"weight": plan.weight, "bias": plan.bias, "eps": plan.eps}
    others: dict[str, Any] = {role: _alias(name) for role, name in roles.items() if name is not None and name != role}
    if plan.offset:
        others["offset"] = plan.offset
    if plan.gate:
        others["norm_before_gate"] = plan.before
    members = {"__module__": __name__, "__doc__": old.__doc__, "made_of": (old, plan), "forward": _forward(plan)}
    return type(old.__name__, (StandIn, old, plan.own), members | others)


def made(old: Any, plan: Plan, memory_efficient: MemoryEfficient = False) -> Any:
    """Return a norm that replaces `old`, shares its parameters, buffers and hooks, and has its other attributes."""
    its_class: Any = type(old)
    kind = stand_in(its_class, plan)
    new = kind.__new__(kind)  # without a constructor, which would make parameters of its own
    vars(new).update(vars(old))
    for name in ("_parameters", "_buffers", "_modules"):
        vars(new)[name] = copy(vars(old)[name])
    become(new, kind)
    new.made_of = its_class, plan
    if plan.offset:
        new.offset = plan.offset  # the class has it, too; but a class's float is a symbol in graphs of dynamic shapes
    if plan.rows:
        _complete(new, plan)
        # A gated norm always keeps x: where a gate is near 0, its output has lost x̂.
        new.memory_efficient, new.dtype_rule = False if plan.gate else memory_efficient, "input"
    return new


def _complete(new: Any, plan: Plan) -> None:
    """Give a norm over rows what the constructors of normlab's classes set, and the old norm has not."""
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
    size = vars(new).get("normalized_shape", ())
    if not isinstance(size, tuple):  # an int or a list: normlab expects a tuple, as torch.nn's norms have
        new.normalized_shape = (size,) if isinstance(size, int) else tuple(size)


def become(norm: torch.nn.Module, kind: Any) -> None:
    """Give a norm another class.

    accelerate's hooks keep the old class's forward in the norm's attributes, bare or in a `partial`: replace it, too.
    """
    norm.__class__ = kind
    held = vars(norm)
    for name in ("_old_forward", "forward"):
        if isinstance(held.get(name), MethodType):
            held[name] = MethodType(kind.forward, norm)
    if isinstance(held.get("forward"), partial):
        held["forward"] = update_wrapper(partial(held["forward"].func, norm), held["_old_forward"])


def has_its_own_forward(norm: torch.nn.Module) -> bool:
    """Return True if a norm's forward is not its class's, even without the hooks that accelerate puts around it."""
    held = vars(norm)
    forward = held.get("forward")
    if isinstance(forward, partial) and "_hf_hook" in held and forward.args == (norm,):
        forward = held.get("_old_forward", forward)
    return forward is not None and getattr(forward, "__func__", None) is not type(norm).forward


def _blank(old: Any, plan: Plan) -> StandIn:
    """Return an empty norm for `__reduce_ex__`, to be filled with a state."""
    kind = stand_in(old, plan)
    return kind.__new__(kind)


def _alias(name: str) -> property:
    """Return a property that reads the old class's attribute `name`. Dynamo does not know operator.attrgetter."""
    return property(lambda norm: getattr(norm, name))


def _forward(plan: Plan) -> Callable[..., Tensor]:
    """Return normlab's forward over the plan's dimension; its arguments have the plan's keywords."""
    compute = _over_channels(plan) if plan.channels else plan.own.forward
    if plan.offset:
        compute = offset_norm
    if plan.gate:
        compute = gated
    keywords = [plan.keyword] if plan.gate is None else [plan.keyword, plan.gate]
    if keywords == ["input"] and compute is plan.own.forward:
        return compute

    def forward(self: Any, *given: Tensor, **named: Tensor) -> Tensor:
        if named:  # append them to `given`, in order: they must be the next keywords that no position has taken
            left = keywords[len(given) :]
            if set(named) != set(left[: len(named)]):
                told = ", ".join([*keywords[: len(given)], *named])
                raise TypeError(f"forward() takes an input called {' and '.join(keywords)}, got {told}")
            given = *given, *(named[keyword] for keyword in left if keyword in named)
        if len(given) < len(keywords) - plan.optional:
            raise TypeError(f"forward() takes {' and '.join(keywords)}, got {len(given)} of them")
        return compute(self, *given)

    kind = Parameter.POSITIONAL_OR_KEYWORD
    described = [Parameter(keyword, kind) for keyword in ("self", *keywords)]
    if plan.optional:
        described[-1] = described[-1].replace(default=None)
    forward.__signature__ = Signature(described)  # type: ignore[attr-defined]
    return forward


def _over_channels(plan: Plan) -> Callable[..., Tensor]:
    """Return a forward over dimension 1: normlab's forward, over the last dimension of a view."""
    compute, moved = plan.own.forward, plan.channels == "moved"

    def forward(self: Any, input: Tensor) -> Tensor:
        output = compute(self, input.movedim(1, -1)).movedim(-1, 1)
        return output if moved else torch.empty_like(input, dtype=output.dtype).copy_(output)

    return forward
