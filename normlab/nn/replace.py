"""Swap a model's norms for normlab's in place, with shared parameters: torch.nn's norms and any other class's.

What a norm of one of torch.nn's own classes computes is known. Three other kinds of modules may be norms, too: a
subclass of torch.nn's norms, a class with "norm" in its name, and a class with `variance_epsilon`, transformers' name
for the eps. Such a module is compared with plans (`normlab.nn.comparing`): norms of normlab's that differ in the roles
of its parameters and in the dimension. It stays if no plan computes the same, and the report says why. Gemma's norm,
which scales by 1 + weight, has a plan with an offset. A norm of two inputs is compared with RMSNorms with a gate, which
comes after the norm or before it.

A swapped norm keeps its class's interface (`normlab.nn.stand_in`), and its output keeps the old output's dtype.
"""

import re
from collections.abc import Collection
from inspect import Parameter, signature
from itertools import permutations
from typing import Any, TypeAlias

import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils import parametrize

from normlab.nn import checks
from normlab.nn.comparing import chosen
from normlab.nn.dtypes import RMS_NORM_RULE, Rule
from normlab.nn.family import modules as family
from normlab.nn.gated_norm.modules import GatedRMSNorm
from normlab.nn.modules import FusedLayerNorm, FusedRMSNorm
from normlab.nn.report import Report
from normlab.nn.shapes import MemoryEfficient
from normlab.nn.stand_in import Plan, StandIn, become, has_its_own_forward, made
from normlab.nn.stream.layers import fuse

ROWS = {torch.nn.LayerNorm: FusedLayerNorm, torch.nn.RMSNorm: FusedRMSNorm}
FAMILY = {
    getattr(torch.nn, name): getattr(family, name)
    for name in ("GroupNorm", *(f"{kind}Norm{rank}d" for kind in ("Batch", "Instance") for rank in (1, 2, 3)))
}
TORCH_NORMS = (torch.nn.LayerNorm, torch.nn.RMSNorm, torch.nn.GroupNorm, _NormBase)
EPS = re.compile("(?<![a-z])eps|Eps|(?<![A-Z])EPS")  # begins a word: num_steps is no eps
Choice: TypeAlias = tuple[Plan, Rule] | str


def replace_norms(
    model: torch.nn.Module, memory_efficient: MemoryEfficient = "exact", *, fuse_residual: bool = False
) -> Report:
    """Swap a model's norms for normlab's, in place.

    A norm stays the same object and gets another class, because lists, closures and compiled calls may refer to it.
    Copy a norm first to compare with it.

    Args:
        model: any module. If it is a norm itself, it stays.
        memory_efficient: the mode of layer and RMS norms, as for `normlab.nn.layer_norm`. FusedLayerNorm and
            FusedRMSNorm modules that the model has already get this mode, too. Norms with a gate keep their input: an
            output does not contain x̂ where the gate is near 0, and gates may be.
        fuse_residual: True also rewrites layers that add before a norm, so that both are one call
            (`normlab.nn.stream`). A layer is rewritten only if it then computes the same, gradients included.

    Returns:
        a report of the norms that were swapped and of those that were not, and of layers that were fused; `print` shows
        it as a table.

    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    >>> print(replace_norms(model, memory_efficient=True))
    name  class      outcome
    1     LayerNorm  FusedLayerNorm, memory_efficient=True
    1 replaced, 0 switched, 0 left, 0 missed
    """
    checks.check_module("replace_norms", model)
    checks.check_mode(memory_efficient)
    report = Report(model, memory_efficient)
    # Old norm → new norm, or the reason why it stays; itself if only its mode changes. A norm with two names has one
    # entry, so both names get the same new norm.
    known: dict[Any, Any] = {}
    choices: dict[Any, Choice] = {}  # `_key` of an old norm → what was chosen: equal norms are compared once
    for name, old in model.named_modules(remove_duplicate=False):
        if isinstance(old, (FusedLayerNorm, FusedRMSNorm)):
            if old.memory_efficient != memory_efficient:
                report.switched.append((name, type(old), old.memory_efficient))
                known[old] = old
            continue
        replaced = isinstance(old, StandIn)  # a gated norm, by an earlier call: it has no other mode
        if replaced or not _looks_like_a_norm(old) or "parametrizations" in name.split("."):
            continue
        plans = _plans(old)
        if old not in known:
            known[old] = "it is the model itself" if old is model else _made(old, plans, memory_efficient, choices)
        new = known[old]
        if not isinstance(new, str):
            report.append((name, type(old), new.made_of[1].own))
        elif plans or isinstance(old, TORCH_NORMS):
            report.left.append((name, type(old), new))
        else:
            report.missed.append((name, type(old), new))
    for norm, new in known.items():  # after all that may raise an error
        if new is norm:
            norm.memory_efficient = memory_efficient
        elif not isinstance(new, str):
            # Keep the object: no module tells which lists or closures refer to it.
            vars(norm).update(vars(new))
            become(norm, type(new))
    if fuse_residual:
        report.fused, report.unfused = fuse(model, become, has_its_own_forward)
    return report


def _looks_like_a_norm(module: torch.nn.Module) -> bool:
    """Return True for torch.nn's norms, for a norm by name, and for an eps beside one-dimensional parameters."""
    if isinstance(module, TORCH_NORMS):
        return not isinstance(module, tuple(FAMILY.values()))
    if _layers(module):  # a block of layers, perhaps with a norm among them
        return False
    dimensions = {parameter.dim() for parameter in module.parameters()}
    return _is_called_a_norm(module) or (_eps(module) is not None and dimensions == {1})


def _layers(module: torch.nn.Module) -> list[str]:
    """Return the names of the module's children that have parameters."""
    return [name for name, child in module.named_children() if any(True for _ in child.parameters())]


def _is_called_a_norm(module: torch.nn.Module) -> bool:
    return "norm" in type(module).__name__.lower() or hasattr(module, "variance_epsilon")


def _eps(module: torch.nn.Module) -> str | None:
    """Return the name of the module's attribute for the eps, or None."""
    own = vars(module)
    if "eps" in own:  # its value may be None, as torch.nn.RMSNorm's
        return "eps"
    numbers = (name for name in own if type(own[name]) in (int, float))
    return next((name for name in numbers if EPS.search(name)), None)


def _plans(old: Any) -> list[Plan]:
    """Return the plans, norms of normlab's, that may compute the same as the old norm."""
    for kind in type(old).__mro__:
        if kind in FAMILY:
            return [Plan(FAMILY[kind], _keyword(old))]
        if kind in ROWS:
            return _over_either_dimension(Plan(ROWS[kind], _keyword(old)))
    if isinstance(old, TORCH_NORMS) or not _is_called_a_norm(old):
        return []
    gated = _with_a_gate(old)
    if gated:
        return gated
    parameters = dict(old.named_parameters(recurse=False))
    shapes = {parameter.shape for parameter in parameters.values()}
    known = hasattr(old, "normalized_shape") if not shapes else len(shapes) == 1
    if not known or len(parameters) > 2:
        return []
    roles = set(permutations([*parameters, None, None], 2))
    plans = [Plan(own, _keyword(old), weight, bias, _eps(old)) for own in ROWS.values() for weight, bias in roles]
    return [either for plan in plans if _fits(plan, parameters) for either in _over_either_dimension(plan)]


def _with_a_gate(old: Any) -> list[Plan]:
    """Return the plans of a norm whose second input may be a gate. It has a weight and an eps by any names."""
    inputs, parameters = _inputs(old), list(old.named_parameters())
    if [one.kind for one in inputs] != [Parameter.POSITIONAL_OR_KEYWORD] * 2:
        return []
    x, gate = inputs
    if x.default is not Parameter.empty or gate.default not in (Parameter.empty, None):
        return []
    if [parameter.dim() for _, parameter in parameters] != [1] or _eps(old) is None:
        return []
    weight = parameters[0][0]
    plan = Plan(GatedRMSNorm, x.name, weight, None, _eps(old), gate=gate.name, optional=gate.default is None)
    return [plan, plan._replace(before=False)]


def _fits(plan: Plan, parameters: Collection[str]) -> bool:
    """Return True if the plan uses every parameter once, and those named weight and bias in these roles."""
    placed = {"weight": plan.weight} if plan.own is FusedRMSNorm else {"weight": plan.weight, "bias": plan.bias}
    named = all(placed.get(role) == role for role in ("weight", "bias") if role in parameters)
    return named and {plan.weight, plan.bias} - {None} == set(parameters) == set(placed.values()) - {None}


def _over_either_dimension(plan: Plan) -> list[Plan]:
    return [plan, plan._replace(channels="moved"), plan._replace(channels="as input")]


def _inputs(old: Any) -> list[Parameter]:
    """Return the parameters of the class's forward, without self; none if it is a builtin without a signature."""
    try:
        return list(signature(type(old).forward).parameters.values())[1:]
    except (TypeError, ValueError):
        return []


def _keyword(old: Any) -> str:
    inputs = _inputs(old)
    return inputs[0].name if inputs else "input"


def _made(old: Any, plans: list[Plan], memory_efficient: MemoryEfficient, choices: dict[Any, Choice]) -> Any:
    """Return a norm with the old norm's parameters, or the reason why there is none."""
    gated = bool(plans) and plans[0].gate is not None
    obstacle = _obstacle(old, gated)
    if obstacle:
        return obstacle
    if not plans:
        return _unrecognised(old)
    choice: Choice = plans[0], RMS_NORM_RULE if plans[0].own is FusedRMSNorm else "torch"
    if type(old) not in ROWS and type(old) not in FAMILY:
        key = _key(old)
        if key not in choices:
            choices[key] = chosen(old, plans)
        choice = choices[key]
    if isinstance(choice, str):
        return f"{_takes_more(old)}; as an RMSNorm with a gate {choice}" if gated else choice
    plan, rule = choice
    new = made(old, plan, memory_efficient)
    if plan.rows:
        new.dtype_rule = rule
    return new


def _obstacle(old: Any, gated: bool) -> str | None:
    """Return the reason why a norm has to stay, whatever it computes, or None. gated: it may have a gate."""
    if isinstance(old, torch.nn.SyncBatchNorm):
        return "its statistics are taken over all processes, and normlab's over one"
    if isinstance(old, LazyModuleMixin):
        return "it is lazy: it has no shape before its first forward"
    if parametrize.is_parametrized(old):
        return "its parameters are parametrized"
    for name, value in vars(old).items():  # by pruning or weight_norm, which make it before every forward
        if isinstance(value, torch.Tensor):
            return f"its {name} is no parameter"
    if any(type(one).__name__ == "DTensor" for one in old.parameters()):  # importing the type takes up to 0.4 s
        return "its parameters are DTensors, which FSDP2 gathers in this module: replace norms before fully_shard"
    if has_its_own_forward(old):
        return "its forward is one of its own, not its class's"
    usual = ("running_mean", "running_var", "num_batches_tracked") if isinstance(old, _NormBase) else ()
    buffers = [name for name, _ in old.named_buffers() if name not in usual]
    if buffers:
        return f"it has buffers: {', '.join(buffers)}"
    if _layers(old):
        return f"it holds modules with parameters: {', '.join(_layers(old))}"
    taken = _inputs(old)
    alone = len(taken) == 1 and taken[0].kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return None if alone or gated else _takes_more(old)


def _takes_more(old: Any) -> str:
    inputs = _inputs(old)
    if not inputs:
        return "its forward shows no input in its signature"
    return f"its forward takes more than an input: {', '.join(map(str, inputs))}"


def _unrecognised(old: Any) -> str:
    """Return the reason why there is no plan for a norm."""
    if isinstance(old, TORCH_NORMS):
        return "normlab has none of its kind"
    if not _is_called_a_norm(old):
        return "it has an eps and parameters, but no norm in its name and no variance_epsilon"
    names = [name for name, _ in old.named_parameters()]
    if names:
        return f"its parameters are not those of a layer or RMS norm: {', '.join(names)}"
    return "it has neither parameters nor a normalized_shape to tell over how many values it normalises"


def _key(old: Any) -> Any:
    """Return a key that is equal only for norms that compute the same from equal inputs and parameters.

    A norm with an attribute that cannot be hashed is its own key.
    """
    # every module has the first of these; accelerate's hooks set the last three, and do not change what is computed
    common = {*vars(torch.nn.Module()), "forward", "_old_forward", "_hf_hook"}
    own = sorted((name, type(value), value) for name, value in vars(old).items() if name not in common)  # 1 is no True
    parameters = [(name, one.shape, one.device) for name, one in old.named_parameters()]
    modules = [(name, _key(child)) for name, child in old.named_children()]
    key = type(old), tuple(own), tuple(parameters), tuple(modules)
    try:
        hash(key)
    except TypeError:
        return old
    return key
