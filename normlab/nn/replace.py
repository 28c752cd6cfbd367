"""Swap a model's norms for normlab's, in place, parameters shared: torch.nn's, and those of any other class.

A norm of torch.nn's own class is known. A subclass of one is asked (`normlab.nn.comparing`), as is every class that is
called a norm, or has transformers' name for the eps (T5LayerNorm is an RMSNorm): by which weight, over which dimension?
Where no norm of normlab's computes the same (Gemma's weight stands for 1 + weight) it stays, and the report says why.

A swapped norm keeps its class's interface (`normlab.nn.stand_in`), and its output the dtype that the old one's had.
"""

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
from normlab.nn.modules import FusedLayerNorm, FusedRMSNorm
from normlab.nn.report import Report
from normlab.nn.shapes import MemoryEfficient
from normlab.nn.stand_in import Plan, has_its_own_forward, made

ROWS = {torch.nn.LayerNorm: FusedLayerNorm, torch.nn.RMSNorm: FusedRMSNorm}
FAMILY = {
    getattr(torch.nn, name): getattr(family, name)
    for name in ("GroupNorm", *(f"{kind}Norm{rank}d" for kind in ("Batch", "Instance") for rank in (1, 2, 3)))
}
TORCH_S = (torch.nn.LayerNorm, torch.nn.RMSNorm, torch.nn.GroupNorm, _NormBase)
Choice: TypeAlias = tuple[Plan, Rule] | str


def replace_norms(model: torch.nn.Module, memory_efficient: MemoryEfficient = "exact") -> Report:
    """Swap the norms of a model in place.

    Args:
        model: any module. It is no norm itself, for that could not be swapped in place.
        memory_efficient: what the backward of layer and RMS norms keeps, as of `normlab.nn.layer_norm`. Those that are
            normlab's already get it, too.

    Returns:
        what was swapped and what was not; `print` shows it as a table.

    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    >>> print(replace_norms(model, memory_efficient=True))
    name  class      outcome
    1     LayerNorm  FusedLayerNorm, memory_efficient=True
    1 replaced, 0 switched, 0 left, 0 missed
    """
    checks.check_mode(memory_efficient)
    report = Report(model, memory_efficient)
    known: dict[torch.nn.Module, Any] = {}  # a norm used in two places stays one
    choices: dict[Any, Choice] = {}
    for name, old in model.named_modules(remove_duplicate=False):
        if isinstance(old, (FusedLayerNorm, FusedRMSNorm)):
            if old.memory_efficient != memory_efficient:
                report.switched.append((name, type(old), old.memory_efficient))
                known[old] = old
            continue
        if not _looks_like_a_norm(old) or "parametrizations" in name.split("."):
            continue
        plans = _plans(old)
        if old not in known:
            known[old] = "it is the model itself" if old is model else _made(old, plans, memory_efficient, choices)
        new = known[old]
        if not isinstance(new, str):
            report.append((name, type(old), new.made_of[1].own))
        elif plans or isinstance(old, TORCH_S):
            report.left.append((name, type(old), new))
        else:
            report.missed.append((name, type(old), new))
    for name, old in list(model.named_modules(remove_duplicate=False)):  # an error has left the model as it was
        new = known.get(old, "")
        if new is old:
            new.memory_efficient = memory_efficient
        elif not isinstance(new, str):
            model.set_submodule(name, new)
    return report


def _looks_like_a_norm(module: torch.nn.Module) -> bool:
    """Is it torch.nn's, called a norm, or has it an eps beside parameters of one dimension?"""
    if isinstance(module, TORCH_S):
        return not isinstance(module, tuple(FAMILY.values()))
    if _layers(module):  # it is a block, with a norm perhaps among them
        return False
    dimensions = {parameter.dim() for parameter in module.parameters()}
    return _is_called_a_norm(module) or (_eps(module) is not None and dimensions == {1})


def _layers(module: torch.nn.Module) -> list[str]:
    """The names of the modules in it that have parameters."""
    return [name for name, child in module.named_children() if any(True for _ in child.parameters())]


def _is_called_a_norm(module: torch.nn.Module) -> bool:
    return "norm" in type(module).__name__.lower() or hasattr(module, "variance_epsilon")


def _eps(module: torch.nn.Module) -> str | None:
    """The name of its attribute for the eps."""
    own = vars(module)
    if "eps" in own:  # None, perhaps, as of torch.nn.RMSNorm
        return "eps"
    return next((name for name in own if "eps" in name.lower() and type(own[name]) in (int, float)), None)


def _plans(old: Any) -> list[Plan]:
    """Norms of normlab's that may compute what old does."""
    for kind in type(old).__mro__:
        if kind in FAMILY:
            return [Plan(FAMILY[kind], _keyword(old))]
        if kind in ROWS:
            return _over_either_dimension(Plan(ROWS[kind], _keyword(old)))
    if isinstance(old, TORCH_S) or not _is_called_a_norm(old):
        return []
    parameters = dict(old.named_parameters(recurse=False))
    shapes = {parameter.shape for parameter in parameters.values()}
    known = hasattr(old, "normalized_shape") if not shapes else len(shapes) == 1
    if not known or len(parameters) > 2:
        return []
    roles = set(permutations([*parameters, None, None], 2))
    plans = [Plan(own, _keyword(old), weight, bias, _eps(old)) for own in ROWS.values() for weight, bias in roles]
    return [either for plan in plans if _fits(plan, parameters) for either in _over_either_dimension(plan)]


def _fits(plan: Plan, parameters: Collection[str]) -> bool:
    """Has it a place for each parameter, and do those that are called weight and bias have theirs?"""
    placed = {"weight": plan.weight} if plan.own is FusedRMSNorm else {"weight": plan.weight, "bias": plan.bias}
    named = all(placed.get(role) == role for role in ("weight", "bias") if role in parameters)
    return named and {plan.weight, plan.bias} - {None} == set(parameters) == set(placed.values()) - {None}


def _over_either_dimension(plan: Plan) -> list[Plan]:
    return [plan, plan._replace(channels="moved"), plan._replace(channels="as input")]


def _inputs(old: Any) -> list[Parameter]:
    """What its class's forward takes."""
    return list(signature(type(old).forward).parameters.values())[1:]


def _keyword(old: Any) -> str:
    inputs = _inputs(old)
    return inputs[0].name if inputs else "input"


def _made(old: Any, plans: list[Plan], memory_efficient: MemoryEfficient, choices: dict[Any, Choice]) -> Any:
    """A norm with the old one's parameters, or why there is none."""
    obstacle = _obstacle(old)
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
        return choice
    plan, rule = choice
    new = made(old, plan, memory_efficient)
    if plan.rows:
        new.dtype_rule = rule
    return new


def _obstacle(old: Any) -> str | None:
    """Why a norm has to stay, whatever it computes."""
    if isinstance(old, torch.nn.SyncBatchNorm):
        return "its statistics are those of all processes, and normlab's are of one"
    if isinstance(old, LazyModuleMixin):
        return "it is lazy: it has no shape before its first forward"
    if parametrize.is_parametrized(old):
        return "its parameters are parametrized"
    for name, value in vars(old).items():  # pruned, say, or torch.nn.utils.weight_norm's: made before every forward
        if isinstance(value, torch.Tensor):
            return f"its {name} is no parameter"
    if has_its_own_forward(old):
        return "its forward is one of its own, not its class's"
    usual = ("running_mean", "running_var", "num_batches_tracked") if isinstance(old, _NormBase) else ()
    buffers = [name for name, _ in old.named_buffers() if name not in usual]
    if buffers:
        return f"it has buffers: {', '.join(buffers)}"
    if _layers(old):
        return f"it holds modules with parameters: {', '.join(_layers(old))}"
    taken = _inputs(old)
    if len(taken) != 1 or taken[0].kind not in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD):
        return f"its forward takes more than an input: {', '.join(map(str, taken))}"
    return None


def _unrecognised(old: Any) -> str:
    """Why no norm of normlab's could be one like it."""
    if isinstance(old, TORCH_S):
        return "normlab has none of its kind"
    if not _is_called_a_norm(old):
        return "an eps and parameters, but neither its name nor a variance_epsilon calls it a norm"
    names = [name for name, _ in old.named_parameters()]
    if names:
        return f"parameters that are none of a layer or RMS norm: {', '.join(names)}"
    return "neither parameters nor a normalized_shape say over how many values it normalises"


def _key(old: Any) -> Any:
    """Equal for norms that compute the same of equal inputs and parameters; the norm itself if that cannot be said."""
    common = {*vars(torch.nn.Module()), "forward", "_old_forward", "_hf_hook"}
    own = sorted((name, value) for name, value in vars(old).items() if name not in common)
    parameters = [(name, one.shape, one.device) for name, one in old.named_parameters()]
    modules = [(name, _key(child)) for name, child in old.named_children()]
    key = type(old), tuple(own), tuple(parameters), tuple(modules)
    try:
        hash(key)
    except TypeError:
        return old
    return key
