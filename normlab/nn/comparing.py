"""Compare an old norm with the norm of normlab's that would replace it. Called by `normlab.nn.replace`.

Copies of both norms get the same random parameters and inputs: small, ordinary, and larger than any range that norms
clamp to. Outputs, all gradients and buffers are compared in training and in evaluation, and outputs of inputs with a
NaN or an infinity, too. Values are compared in float32 or float64, where another formula shows, such as a variance with
n - 1 or detached statistics. Dtypes are compared for every mix of float32 and a half that the old norm takes.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from normlab.nn.dtypes import RULES, Rule, asks_autocast
from normlab.nn.engines import engine
from normlab.nn.modules import FusedRMSNorm
from normlab.nn.private import without_hooks
from normlab.nn.stand_in import Plan, made

FLOAT, HALVES = torch.float32, (torch.bfloat16, torch.float16)
MIXES = [mix for half in HALVES for mix in ((half, half), (FLOAT, half), (half, FLOAT))]
"""(parameters' dtype, input's)."""
ROUNDINGS = 64
"""The difference allowed between results, in float32 roundings of the largest value: sums may differ in order."""
SCALES = [(1, 1), (1e-3, 1), (1e3, 1), (1e-6, 1), (1e6, 1), (0, 1), (1, 1e-3), (1, 1e6)]
"""(inputs', parameters'). Small inputs show the eps; 1e6 lies outside of float16's range, to which some norms clamp."""
OUTLIER = 1e4
"""The factor of one value of each input. The x̂ of this value comes close to the largest x̂ that is possible."""
NOT_FINITE = (float("nan"), float("inf"))
TINY = 1e-7
UNKNOWN = "it cannot be compared"
"""How the reason begins if an old norm raises an error for each input."""

Results: TypeAlias = dict[str, Tensor | None]


class Difference(NamedTuple):
    """The first difference that a plan was rejected for. The plan that passed the most gives the reported reason.

    passed: the number of inputs with equal results, then the number of equal results for the next input.
    off: the error of the first unequal result; of plans that passed as much, the one with the smallest error reports.
    """

    passed: tuple[int, int]
    off: float
    why: str


def chosen(norm: torch.nn.Module, plans: list[Plan]) -> tuple[Plan, Rule] | str:
    """Return the plan that computes the norm, with the rule for its output's dtype; a reason if no plan does."""
    found = _chosen_in(FLOAT if plans[0].rows else torch.float64, norm, plans)
    # A forward that calls x.float() takes no float64 parameters. The family is not compared in float32 at once, because
    # an outlier costs PyTorch's float32 norms digits.
    alone = isinstance(found, str) and found.startswith(UNKNOWN) and not plans[0].rows
    return _chosen_in(FLOAT, norm, plans) if alone else found


def _chosen_in(dtype: torch.dtype, norm: torch.nn.Module, plans: list[Plan]) -> tuple[Plan, Rule] | str:
    """Return `chosen`, by values in this dtype."""
    try:
        with torch.inference_mode(False):  # inference tensors could not be written to
            old = _copied(norm).to(dtype).requires_grad_()
        with _quietly(_device(old)):
            plans = [plan if plan.eps else plan._replace(value=_measured_eps(old, plan)) for plan in plans]
            differences = []
            for plan in plans:
                difference = _difference(old, plan, dtype)
                if difference is None:
                    return _with_rule(old, plan)
                differences.append(difference)
            worst = max(differences, key=lambda difference: (difference.passed, -difference.off))
            found = next((plan for plan in plans if plan.weight and _difference(old, plan, dtype, 1.0) is None), None)
            return worst.why if found is None else _with_offset(old, found)
    except Exception as error:
        return f"{UNKNOWN}: {type(error).__name__}: {error}"


@contextmanager
def _quietly(device: torch.device) -> Iterator[None]:
    """Shut out the caller's random numbers, grad mode, autocast, default device and engine in a `with` block."""
    gpus = [device] if device.type == "cuda" else []
    autocast = torch.autocast(device.type, enabled=False)
    with (
        torch.random.fork_rng(gpus),
        torch.inference_mode(False),
        torch.enable_grad(),
        autocast,
        device,
        engine("auto"),
    ):
        yield


def _copied(norm: Any) -> Any:
    """Return a copy without hooks, on the norm's device, or on the CPU if that is the meta device."""
    copied = copy.deepcopy(without_hooks(norm))
    if any(tensor.is_meta for tensor in copied.parameters()):
        copied = copied.to_empty(device="cpu")
    return copied


def _device(norm: Any) -> torch.device:
    return next((parameter.device for parameter in norm.parameters()), torch.device("cpu"))


def _difference(old: Any, plan: Plan, dtype: torch.dtype = FLOAT, added: float = 0.0) -> Difference | None:
    """Return the first difference between a norm and its stand-in for inputs of a dtype, or None.

    added: a number added to the new weight.
    """
    new = made(copy.deepcopy(old), plan)
    generator = torch.Generator().manual_seed(0)
    passed, taken, refusal = 0, None, None
    inputs: tuple[Tensor, ...]
    for shape in _shapes(old, plan):
        x = _random(shape, generator).to(_device(old), dtype) + 1  # so that the mean is not 0
        x.view(-1)[0] *= OUTLIER
        inputs = (x,) if plan.gate is None else (x, _random(shape, generator).to(x))
        _fill(old, new, plan, generator, 1.0, added)
        try:
            want = _results(old, *inputs)
        except Exception as error:
            refusal = error
            continue
        if want["its output"].shape != x.shape:  # type: ignore[union-attr]  # broadcast with parameters of another shape
            refusal = ValueError(f"its output has another shape than its input of {tuple(x.shape)}")
            continue
        taken = inputs
        difference = _off(want, _results_or_error(new, *inputs), passed, "")
        if difference is not None:
            return difference
        passed += 1
    if taken is None:
        return Difference((0, 0), float("inf"), f"{UNKNOWN}: {type(refusal).__name__}: {refusal}")
    for training in (True, False):
        old.train(training), new.train(training)
        for scale, parameters in SCALES:
            _fill(old, new, plan, generator, parameters, added)
            mode = "training" if training else "evaluation"
            where = f" in {mode}, inputs of {scale:g}, parameters of {parameters:g}"
            x, *gate = taken
            difference = _off(_results(old, x * scale, *gate), _results_or_error(new, x * scale, *gate), passed, where)
            if difference is not None:
                return difference
            passed += 1
        for value in NOT_FINITE:
            x, *gate = (one.clone() for one in taken)
            x.view(-1)[-1] = value
            want, got = _results(old, x, *gate), _results_or_error(new, x, *gate)
            # gradients are left out: 0 times infinity is NaN, and formulas may multiply in any order
            difference = _off({"its output": want["its output"]}, got, passed, f" with an element of {value}")
            if difference is not None:
                return difference
            passed += 1
    if plan.optional:
        return _off(_results(old, taken[0]), _results_or_error(new, taken[0]), passed, " without a gate")
    return None


def _shapes(old: Any, plan: Plan) -> list[tuple[int, ...]]:
    """Return shapes of inputs that the norm may take, with sizes that show which dimension is which.

    A norm over the last dimension also gets shapes that only a norm over dimension 1 takes, and the other way round:
    the new norm must take every input that the old norm takes. A norm without parameters takes any shape, and gets only
    the shapes of its plan.
    """
    if not plan.rows:
        channels = getattr(old, "num_features", getattr(old, "num_channels", 1))
        # The rank in the class's name comes last, because the last refusal is reported.
        ranks = sorted((3, 4, 5), key=lambda rank: plan.own.__name__.endswith(f"{rank - 2}d"))
        return [(4, channels, 5, 3, 2)[:rank] for rank in ranks]  # groups of one value are all rounding
    inner = _inner(old, plan)
    sizes = [size for size in range(2, 6 + len(inner)) if size not in inner][:4]
    last = [(*sizes[:leading], *inner) for leading in (1, 2, 3)]
    first = [(sizes[0], *inner, *sizes[1:spatial]) for spatial in (2, 3, 4)]
    own, others = (first, last) if plan.channels else (last, first)
    return [*own, *others] if len(inner) == 1 and inner != (1,) and any(True for _ in old.parameters()) else own


def _inner(old: Any, plan: Plan) -> tuple[int, ...]:
    """Return the sizes of the dimensions that the norm normalises over."""
    shape = made(old, plan).normalized_shape
    return tuple(shape) if hasattr(shape, "__len__") else (shape,)


def _fill(old: Any, new: Any, plan: Plan, generator: torch.Generator, scale: float, added: float) -> None:
    """Set the same random parameters and buffers in both."""
    with torch.no_grad():
        for one, other in zip(old.parameters(), new.parameters(), strict=True):
            other.copy_(one.copy_(_random(one.shape, generator) * scale))
        if added:
            getattr(new, plan.weight or "").add_(added)
        for one, other in zip(old.buffers(), new.buffers(), strict=True):
            value = torch.rand(one.shape, generator=generator, device="cpu") + 0.5  # a variance is positive
            other.copy_(one.copy_(value if one.is_floating_point() else torch.ones_like(value)))


def _random(shape: Any, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, device="cpu", dtype=FLOAT)


def _results(norm: Any, *inputs: Tensor) -> Results:
    """Return the output, the gradients, and the buffers after the forward, keyed by their names in a reason."""
    inputs = tuple(one.detach().requires_grad_() for one in inputs)
    output = norm.forward(*inputs)
    if not isinstance(output, Tensor):
        raise TypeError(f"its output is a {type(output).__name__}, not a tensor")
    leaves = dict(zip(("the gradient of its input", "the gradient of its gate"), inputs, strict=False))
    leaves |= {f"the gradient of its {name}": parameter for name, parameter in norm.named_parameters()}
    gradients: Any = [None] * len(leaves)
    if output.requires_grad:
        direction = _random(output.shape, torch.Generator().manual_seed(1)).to(output)
        gradients = torch.autograd.grad(output, list(leaves.values()), direction, allow_unused=True)
    buffers = {f"its buffer {name}": buffer.clone() for name, buffer in norm.named_buffers()}
    return {"its output": output.detach(), **dict(zip(leaves, gradients, strict=True)), **buffers}


def _results_or_error(norm: Any, *inputs: Tensor) -> Results | Exception:
    try:
        return _results(norm, *inputs)
    except Exception as error:
        return error


def _off(wanted: Results, results: Results | Exception, passed: int, where: str) -> Difference | None:
    """Return the first result that differs from the wanted one, or None."""
    if isinstance(results, Exception):
        shape = tuple(wanted["its output"].shape)  # type: ignore[union-attr]
        return Difference(
            (passed, 0), float("inf"), f"it takes inputs of shape {shape}, and normlab's does not: {results}"
        )
    for index, (name, want) in enumerate(wanted.items()):
        at, infinite = (passed, index), float("inf")
        got, output = results[name], name == "its output"
        if (want is None) != (got is None):
            none = "is not there" if want is None else "is there"
            return Difference(at, infinite, f"{name} {none}, unlike normlab's")
        if want is None or got is None:
            continue
        if want.shape != got.shape or want.dtype != got.dtype:
            return Difference(at, infinite, f"{name} has another shape or dtype")
        same = (want == got) | (want.isnan() & got.isnan())
        off = torch.where(same, 0, want.double() - got.double()).abs().max().item()
        largest = want.double().abs().nan_to_num().max().item()
        if not off <= ROUNDINGS * torch.finfo(FLOAT).eps * largest:
            said = "it computes something else" if output else f"{name} is another"
            by = f"off by {off:.2g}" if off == off else "one of the two is not finite"
            return Difference(at, off / max(largest, TINY), f"{said}: {by} on a random input{where}")
        if output and want.is_contiguous() and not got.is_contiguous():
            return Difference(at, infinite, "its output is contiguous, and normlab's is not")
    return None


def _measured_eps(old: Any, plan: Plan) -> float | None:
    """Return an eps that is written in a norm's code only, measured from the outputs x / sqrt(x² + eps) of tiny x."""
    shape = _shapes(old, plan)[1]
    dims = (1,) if plan.channels else tuple(range(1 - len(shape), 0))[-len(_inner(old, plan)) :]
    x = TINY * _random(shape, torch.Generator().manual_seed(0)).sign().to(_device(old))
    with torch.no_grad():
        for name, parameter in old.named_parameters():
            parameter.fill_(name == plan.weight)
        try:
            output = old.forward(x).double()
        except Exception:  # the norm takes no such shape; `_difference` will reject the plan
            return None
    centred = x.double() if issubclass(plan.own, FusedRMSNorm) else x.double() - x.double().mean(dims, keepdim=True)
    eps = (centred / output).square() - centred.square().mean(dims, keepdim=True)
    return float(f"{eps[centred != 0].median().item():.3g}") if bool((centred != 0).any()) else None


def _with_offset(old: Any, plan: Plan) -> tuple[Plan, Rule] | str:
    """Return the plan of a norm that scales by 1 + weight, with the rule for dtypes; a reason if normlab has none."""
    if plan.channels or not issubclass(plan.own, FusedRMSNorm):
        return "it scales by 1 + weight, not by its weight"
    plan = plan._replace(offset=1.0)
    difference = _difference(old, plan)
    if difference is not None:
        return difference.why
    ruled = _with_rule(old, plan)
    if isinstance(ruled, str):
        return ruled
    if ruled[1] == "torch":
        return "it scales by 1 + weight, and autocast makes it float32"
    return _rounds_early(old, *ruled) or ruled


def _rounds_early(old: Any, plan: Plan, rule: Rule) -> str | None:
    """Return a reason if a norm of halves rounds before the end: normlab's kernel computes with 1 + weight in float32.

    Two norms that round once, at the end, differ by at most one unit in the last place. 1 + weight in a half has lost
    the weight's own digits.
    """
    new, generator = made(copy.deepcopy(old), plan), torch.Generator().manual_seed(0)
    new.dtype_rule = rule
    for parameters, given in MIXES:
        old, new = old.to(parameters), new.to(parameters)
        _fill(old, new, plan, generator, 0.1, 0.0)
        x = _random((64, *_shapes(old, plan)[1][1:]), generator).to(_device(old), given)
        with torch.no_grad():
            want, got = old.forward(x), new.forward(x)
        unit = torch.finfo(want.dtype).eps * torch.exp2(torch.frexp(got.float().abs()).exponent - 1)
        if want.dtype in HALVES and not bool(((want.float() - got.float()).abs() <= unit).all()):
            return f"it rounds 1 + weight or the normalised values to {want.dtype} before it multiplies them"
        if want.dtype is FLOAT and not torch.allclose(want, got, rtol=1e-4, atol=1e-5):
            return f"it rounds to {given} or {parameters} before its float32 output"
    return None


def _with_rule(old: Any, plan: Plan) -> tuple[Plan, Rule] | str:
    """Return the plan with the rule for dtypes that the old norm follows; a reason if it follows none."""
    new = made(copy.deepcopy(old), plan)
    rules, inner = list(RULES), None
    for parameters, given in MIXES:
        old, new = old.to(parameters), new.to(parameters)
        gates = [()] if plan.gate is None else [(given,), *((other,) for other in (FLOAT, *HALVES) if other != given)]
        for shape, gate in product(_shapes(old, plan), gates):
            inputs = [torch.ones(shape, dtype=one, device=_device(old)) for one in (given, *gate)]
            try:
                want = old.forward(*inputs)
            except Exception:  # the new norm need not take what the old norm does not take
                continue
            inner = shape[1:]
            rules = [rule for rule in rules if _dtype(new, rule, *inputs) == want.dtype]
            if not rules:
                return f"its output has another dtype for parameters in {parameters} and an input in {given}"
    alone = plan.rows and plan.gate is None
    by_torch = alone and rules[0] == "input" and inner is not None and asks_autocast(old, inner)
    return plan, "torch" if by_torch else rules[0]


def _dtype(new: Any, rule: Rule, *inputs: Tensor) -> torch.dtype:
    new.dtype_rule = rule
    return new.forward(*inputs).dtype
