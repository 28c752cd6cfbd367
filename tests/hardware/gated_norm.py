"""What `hardware.add_norm` checks and times of gated and modulated norms: its parts check_others and others."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import gated_norms
import modulated_norms

from normlab.engine import using

EPS = 1e-6
GATED = [
    *itertools.product([(67, 64), (5, 333), (40, 1024), (9, 4096), (3, 8192)], ("bfloat16",), (None,)),
    *itertools.product([(19, 128), (300, 768), (2, 16384)], ("float16",), (None,)),
    *itertools.product([(67, 64), (9, 4096)], ("float32",), (None,)),
    ((7, 2048), "bfloat16", "float32"),
    ((3, 66_000), "bfloat16", None),
    ((4, 100), "float64", None),
]
MODES = [(True, False), (True, True), (False, False)]  # norm before gate, memory_efficient
MODULATED = [
    (3, 40, 1152, "bfloat16", None),
    (5, 300, 64, "bfloat16", None),
    (200, 7, 520, "float16", None),
    (4, 9, 4096, "bfloat16", "float32"),
    (2, 21, 2048, "float32", None),
    (3, 5, 333, "bfloat16", None),
    (2, 2, 66_000, "bfloat16", None),
    (2, 4, 100, "float64", None),
]
TIMED = [(8192 * 32, 128), (8192 * 64, 64), (8192, 2048), (8192, 4096)]
SAMPLED = [(8, 1024, 4096), (64, 256, 1152)]  # the second: DiT-XL/2 at 256 x 256
COMPILED = TIMED[::3], SAMPLED  # the compiler takes ten seconds for a shape


def check_gated(shape: tuple[int, int], dtype: str, parameters: str | None, before: bool, recompute: bool) -> None:
    """Hold a gated norm to its bounds; raises AssertionError."""
    with using("gpu"):
        gated_norms.examine_gated_backward(gated_norms.fixed_case(*shape, dtype, before, parameters), recompute)


def check_modulated(*case: Any) -> None:
    """Hold a modulated norm to its bounds; raises AssertionError."""
    with using("gpu"):
        modulated_norms.examine_modulated(modulated_norms.fixed_case(*case))


def checks() -> list[tuple[Callable, tuple]]:
    """Return all checks, with their arguments."""
    gated = [(check_gated, (*case, *mode)) for case in GATED for mode in MODES]
    return [*gated, *((check_modulated, case) for case in MODULATED)]


def gated_formula(before: bool) -> Callable:
    """The formulas of Qwen3-Next and Mamba-2 by torch's operations."""
    from torch.nn.functional import rms_norm, silu

    def after_norm(x: Any, gate: Any, weight: Any) -> Any:
        return rms_norm(x, x.shape[-1:], weight, EPS) * silu(gate)

    def before_norm(x: Any, gate: Any, weight: Any) -> Any:
        return rms_norm(x * silu(gate), x.shape[-1:], weight, EPS)

    return after_norm if before else before_norm


def modulated_formula(x: Any, scale: Any, shift: Any) -> Any:
    """DiT's norm by torch's operations."""
    from torch.nn.functional import layer_norm

    return layer_norm(x, x.shape[-1:], eps=EPS) * (1 + scale[:, None]) + shift[:, None]


def contenders(shape: tuple[int, ...], kind: str, compiled: bool) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """(direction, name, call) of all; kind: "gated", "gated x" or "modulated"."""
    import torch

    from normlab.nn import gated_rms_norm, modulated_layer_norm

    def rows(*size: int) -> Any:
        return torch.randn(*size, device="cuda").bfloat16().requires_grad_()

    x = rows(*shape)
    if kind == "modulated":
        given = x, rows(shape[0], shape[-1]), rows(shape[0], shape[-1])
        ours = {"normlab": lambda *given: modulated_layer_norm(*given, EPS)}
        formula = modulated_formula
    else:
        given, before = (x, rows(*shape), rows(shape[-1])), kind == "gated"
        ours = {"normlab": lambda *given: gated_rms_norm(*given, EPS, norm_before_gate=before)}
        if before:
            ours["normlab output"] = lambda *given: gated_rms_norm(*given, EPS, memory_efficient=True)
        formula = gated_formula(before)
    grad = torch.randn_like(x)
    peers = {"torch": formula}
    if compiled:
        peers["torch.compile"] = torch.compile(formula, fullgraph=True, dynamic=False)
    want = formula(*given)
    wanted = torch.autograd.grad(want, given, grad)
    for name, function in {**ours, **peers}.items():
        output = function(*given)
        if name != "normlab output":  # which has lost x where a gate is 0; the parts `check_…` hold it to its bound
            close(name, (output, *torch.autograd.grad(output, given, grad, retain_graph=True)), (want, *wanted))
            yield "forward", name, lambda function=function: no_grad(function, given)
        yield "backward", name, lambda output=output: torch.autograd.grad(output, given, grad, retain_graph=True)


def close(name: str, found: tuple, wanted: tuple) -> None:
    """Raise unless all tensors are about equal, relative to the largest element."""
    for mine, theirs in zip(found, wanted, strict=True):
        off = (mine.float() - theirs.float()).abs().max() / theirs.float().abs().max()
        assert off < 0.03, (name, tuple(mine.shape), float(off))


def no_grad(function: Callable, given: tuple) -> Any:
    """A forward alone."""
    import torch

    with torch.no_grad():
        return function(*given)


def times(row: Any, copy_time: Callable[[Any, int, int], float]) -> Iterator[Any]:
    """Yield the times of contenders, first those that need no compiler. row, copy_time: of `hardware.add_norm`."""
    import torch

    from normlab.measure.timing import EventTimer

    timer = EventTimer()
    jobs = [(shape, "modulated", False) for shape in SAMPLED]
    jobs += [(shape, kind, False) for shape in TIMED for kind in ("gated", "gated x")]
    jobs += [(shape, "gated", True) for shape in COMPILED[0]] + [(shape, "modulated", True) for shape in COMPILED[1]]
    for shape, kind, compiled in jobs:
        elements = torch.Size(shape).numel()
        matrices = {"forward": 2, "backward": 3} if kind == "modulated" else {"forward": 3, "backward": 5}
        copies = {direction: copy_time(timer, elements, count) for direction, count in matrices.items()}
        for direction, contender, call in contenders(shape, kind, compiled):
            if compiled and contender != "torch.compile":
                continue
            name = direction, kind, " x ".join(map(str, shape)), contender
            yield row.timed(name, timer(call).median, copies[direction])
