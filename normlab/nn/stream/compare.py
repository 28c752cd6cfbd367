"""Compare a layer with the same layer rewritten, before a model gets it. Called by `normlab.nn.stream.layers`.

Copies of the layer run on the CPU in float64, with its own norms and its own code. A small function, a different one
for each, replaces every other module with parameters, because the rewriting does not change what these compute. So a
large layer takes no longer to compare. Outputs and all gradients are compared, in training and in evaluation.
"""

import copy
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import Parameter, signature, unwrap
from typing import Any, NamedTuple

import torch
from torch import Tensor

from normlab.nn.engines import engine
from normlab.nn.private import without_function_modes, without_hooks

SHAPE = (7, 5)
"""The drawn input's leading dimensions: sizes that a layer does not unpack by accident."""
TRIES = 300
"""The most runs of a layer to find out which of its modules return tuples. A run of a small layer takes 3 ms."""
ALLOWED = 1e-9
"""The difference allowed between results in float64, relative to the largest value."""


class _StandIn(torch.nn.Module):
    """A function of its first tensor, in place of a module.

    extra: how many further results a call returns, as None. calls: how many times it was called with a tensor.
    """

    def __init__(self, number: int, extra: int) -> None:
        super().__init__()
        self.number, self.extra, self.calls = number, extra, 0

    def forward(self, *given: Any, **named: Any) -> Any:
        """Return a tensor of the first tensor's shape, alone or before `extra` times None."""
        x = next(one for one in (*given, *named.values()) if isinstance(one, Tensor))
        self.calls += 1
        y = torch.tanh(x * (1 + 0.3 * self.number) + x.roll(self.number + 1, -1) * 0.5)
        return (y, *[None] * self.extra) if self.extra else y


def difference(layer: torch.nn.Module, fused: Any, norms: tuple[str, ...]) -> str | None:
    """Return why a layer must not get the class `fused`; None if it computes the same."""
    autocast = torch.autocast("cpu", enabled=False)
    # without function modes, because no call is fused inside of one; a default device is one of them
    with torch.random.fork_rng([]), _with_gradients(), autocast, without_function_modes(), engine("auto"):
        return _compared_with_stand_ins(layer, fused, norms)


@contextmanager
def _with_gradients() -> Iterator[None]:
    with torch.inference_mode(False), torch.enable_grad():
        yield


def _compared_with_stand_ins(layer: Any, fused: Any, norms: tuple[str, ...]) -> str | None:
    """Return why the layer must not become `fused`. Stand-ins return what makes its forward fuse the most calls."""
    others = [name for name, child in layer.named_children() if name not in norms and list(child.parameters())]
    try:
        rewritten = _become(_copied(layer, dict.fromkeys(others, 0)), fused).eval()
        tried = _tried_extras(rewritten, norms, others)
        if tried.calls < len(fused.sites):
            return tried.why or f"{tried.calls} of {len(fused.sites)} additions and norms became one call"
        return _compared(_copied(layer, tried.extras), fused, norms)
    except Exception as error:
        return _failure(error)


class _Tried(NamedTuple):
    """A run of a layer. extras: each stand-in's. why: the error that ended it.

    passed: the calls of stand-ins that the layer's code went past. calls: the fused calls; -1 after an error.
    """

    extras: dict[str, int]
    passed: int
    calls: int
    why: str | None = None

    def beats(self, other: "_Tried") -> bool:
        """Return True if this run ended without an error or got further, or if it fused more calls."""
        return (self.why is None, self.passed, self.calls) > (other.why is None, other.passed, other.calls)


def _tried_extras(layer: Any, norms: tuple[str, ...], others: list[str]) -> _Tried:
    """Return the best run of a rewritten layer over numbers of further results of its stand-ins.

    Only the layer's code knows whether a module returns a tensor or a tuple. With the wrong one the code raises an
    error at its next statements, or adds tensors of two shapes, which no fused call takes. So the search begins with
    tensors, and changes one stand-in, or else two, as long as that gets the code further. Trying all combinations would
    take three times as long with every module.
    """
    best = _tried(layer, norms, dict.fromkeys(others, 0))
    waiting = _changed(best.extras)
    for _ in range(TRIES):
        changed = next(waiting, None)
        if changed is None or best.calls >= len(type(layer).sites):
            break
        found = _tried(layer, norms, changed)
        if found.beats(best):
            best, waiting = found, _changed(found.extras)
    return best


def _changed(extras: dict[str, int]) -> Iterator[dict[str, int]]:
    """Yield the numbers with one of them changed, then with two."""
    for count in (1, 2):
        for names in itertools.combinations(extras, count):
            for values in itertools.product((0, 1, 2), repeat=count):
                if all(extras[name] != value for name, value in zip(names, values, strict=True)):
                    yield extras | dict(zip(names, values, strict=True))


def _tried(layer: Any, norms: tuple[str, ...], extras: dict[str, int]) -> _Tried:
    """Return the run of a rewritten layer whose stand-ins have these numbers of further results."""
    stand_ins = [getattr(layer, name) for name in extras]
    for one, extra in zip(stand_ins, extras.values(), strict=True):
        one.extra, one.calls = extra, 0
    try:
        calls, why = _results(layer, norms)[1], None
    except Exception as error:
        calls, why = -1, _failure(error)
    return _Tried(extras, sum(one.calls for one in stand_ins), calls, why)


def _failure(error: Exception) -> str:
    return f"it cannot be compared: {type(error).__name__}: {error}"


def _become(layer: Any, kind: Any) -> Any:
    """Return a copy of the layer with another class."""
    copied = copy.deepcopy(layer)
    copied.__class__ = kind
    return copied


def _copied(layer: Any, extras: dict[str, int]) -> Any:
    """Return a copy of the layer in float64 on the CPU, without hooks, with random parameters and with stand-ins."""
    bare, generator = _bare(layer), torch.Generator().manual_seed(0)
    # `named_children` leaves out a None and a module's second name, which the layer's code may use.
    made: dict[Any, Any] = {None: None}
    for number, (name, child) in enumerate(layer.named_children()):
        made[child] = _StandIn(number, extras[name]) if name in extras else _bare(child)
    vars(bare)["_modules"] = {name: made[child] for name, child in vars(layer)["_modules"].items()}
    copied = copy.deepcopy(bare)
    for module in (copied, *copied.children()):
        for held in (module._parameters, module._buffers):
            for name, one in held.items():
                if one is not None:
                    drawn = torch.rand(one.shape, generator=generator, dtype=torch.float64) + 0.5
                    held[name] = torch.nn.Parameter(drawn) if held is module._parameters else drawn
    return copied


def _bare(module: Any) -> Any:
    """Return a shallow copy of a module without hooks and with meta tensors, so that a deep copy copies no values."""
    bare = without_hooks(module)
    for name in ("_parameters", "_buffers"):
        held = vars(module)[name]
        vars(bare)[name] = {key: None if one is None else one.detach().to("meta") for key, one in held.items()}
    return bare


def _compared(old: Any, fused: Any, norms: tuple[str, ...]) -> str | None:
    """Return the first difference between a layer and the same layer of the class `fused`."""
    new = _become(old, fused)
    for training in (True, False):
        wanted, _ = _results(old.train(training), norms)
        got, _ = _results(new.train(training), norms)
        if wanted.keys() != got.keys():
            return "rewritten, it has other results"
        for name, want in wanted.items():
            if (want is None) != (got[name] is None):
                return f"rewritten, {name} is there in one of the two only"
            if want is not None:
                off = float((want - got[name]).abs().max()) / max(1e-30, float(want.abs().max()))
                if not off <= ALLOWED:
                    return f"rewritten, {name} is off by {off:.2g} of its largest value"
    return None


def _results(layer: Any, norms: tuple[str, ...]) -> tuple[dict[str, Any], int]:
    """Return the outputs and gradients by name, and how many fused calls have made them."""
    torch.manual_seed(0)
    size = getattr(layer, norms[0]).normalized_shape[-1]
    x = torch.randn(*SHAPE, size, dtype=torch.float64).requires_grad_()
    given, named = _arguments(layer, x)
    outputs = [one for one in _tensors(layer.forward(*given, **named)) if one.requires_grad]
    if not outputs:
        raise TypeError("its output has no gradient")
    leaves = {"its input": x, **dict(layer.named_parameters())}
    directions = [torch.randn_like(one) for one in outputs]
    gradients = torch.autograd.grad(outputs, list(leaves.values()), directions, allow_unused=True)
    found: dict[str, Any] = {f"output {index}": one.detach() for index, one in enumerate(outputs)}
    found |= {f"the gradient of {name}": one for name, one in zip(leaves, gradients, strict=True)}
    return found, _fused_calls(outputs)


def _arguments(layer: Any, x: Tensor) -> tuple[list[Any], dict[str, Any]]:
    """Return arguments for the layer's forward: x as its first, and None for others without a default."""
    _, *names = signature(unwrap(type(layer).forward)).parameters.values()
    given: list[Any] = [x]
    named: dict[str, Any] = {}
    for one in names[1:]:
        if one.default is not Parameter.empty or one.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
            continue
        if one.kind is Parameter.KEYWORD_ONLY:
            named[one.name] = None
        else:
            given.append(None)
    return given, named


def _tensors(given: Any) -> Iterator[Tensor]:
    """Yield the tensors of a result, also those in tuples and lists."""
    if isinstance(given, Tensor):
        yield given
    elif isinstance(given, (tuple, list)):
        for one in given:
            yield from _tensors(one)


def _fused_calls(outputs: list[Tensor]) -> int:
    """Return how many fused calls are in the graph of the outputs."""
    seen: set[Any] = set()
    waiting: list[Any] = [one.grad_fn for one in outputs]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    return sum(getattr(node, "past", False) is True for node in seen)  # an attribute of `AddNorm`'s nodes
