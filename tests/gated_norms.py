"""Hold RMSNorms with a gate to the oracle: what their tests and the mutants share."""

from dataclasses import dataclass, replace

import numpy as np
from draws import DTYPES, Case, cases
from examine import arithmetic, hold, with_plan
from hypothesis import strategies as st

from normlab import oracle
from normlab.host import gated_norm
from normlab.kernels import Device, Plan, Problem
from normlab.kernels.gated_norm import BACKWARD, FORWARD
from normlab.stages.gate import Gate

GATES = {"normal": 1.0, "wide": 12.0, "far": 100.0}  # how far gates lie from 0


@dataclass(frozen=True)
class GatedCase:
    """What a gated norm takes: `norm` is the plain RMSNorm's case."""

    norm: Case
    gate: np.ndarray  # (n1, n2), x's dtype
    before: bool  # norm_before_gate


def gates(kind: str, rng: np.random.Generator, shape: tuple) -> np.ndarray:
    """Gates in float64, some of them 0."""
    drawn = GATES[kind] * rng.normal(size=shape)
    return np.where(rng.random(shape) < 0.05, rng.choice([0.0, -0.0], shape), drawn)


@st.composite
def gated_cases(draw, **options) -> GatedCase:
    """A case, from that of a plain norm."""
    norm = draw(cases(**options))
    grad_output = norm.grad_output
    if norm.weight is None:  # the output then has x's dtype
        grad_output = grad_output.astype(norm.x.dtype)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1), label="seed of the gate"))
    gate = gates(draw(st.sampled_from(sorted(GATES)), label="gates"), rng, norm.x.shape).astype(norm.x.dtype)
    before = draw(st.booleans(), label="norm before gate?")
    return GatedCase(replace(norm, rms=True, bias=None, grad_output=grad_output), gate, before)


def forward(case: GatedCase) -> tuple:
    """(output, invvar)."""
    norm = case.norm
    return gated_norm.gated_rms_norm_forward(norm.x, case.gate, norm.weight, eps=norm.eps, norm_before_gate=case.before)


def backward(case: GatedCase, saved, invvar, memory_efficient: bool) -> tuple:
    """(grad_x, grad_gate, grad_weight or None)."""
    given = case.norm.grad_output, saved, case.gate, invvar, case.norm.weight
    how = {"norm_before_gate": case.before, "memory_efficient": memory_efficient}
    return gated_norm.gated_rms_norm_backward(*given, eps=case.norm.eps, **how)


def given(case: GatedCase) -> tuple:
    """The oracle's arguments."""
    return case.norm.x, case.gate, case.norm.weight, case.norm.eps


def examine_gated_forward(case: GatedCase) -> tuple[tuple, oracle.GatedResult]:
    """Hold a forward to the oracle. Returns its results, and the bounds they keep."""
    results, plan = with_plan(forward, case)
    truth = oracle.gated_rms_norm(*given(case), case.before)
    bound = oracle.gated_rms_norm_bound(*given(case), arithmetic(case.norm, plan.rows), case.before)
    for what, *rest in zip(("output", "invvar"), results, truth, bound, strict=True):
        hold(f"gated_norm forward {what}", *rest)
    return results, bound


def examine_gated_backward(case: GatedCase, memory_efficient: bool) -> tuple:
    """Hold a forward and its backward to the oracle. Returns the gradients and their bounds."""
    (output, invvar), errors = examine_gated_forward(case)
    saved = output if memory_efficient else case.norm.x
    gradients, plan = with_plan(backward, case, saved, invvar, memory_efficient)
    truth = oracle.gated_rms_norm_backward(case.norm.grad_output, *given(case), case.before)
    bound = oracle.gated_rms_norm_backward_bound(
        case.norm.grad_output,
        *given(case),
        arithmetic(case.norm, plan.rows, plan.columns),
        case.before,
        memory_efficient=memory_efficient,
        errors=errors,
    )
    path = "recompute" if memory_efficient else "saved"
    for what, *rest in zip(("grad_x", "grad_gate", "grad_weight"), gradients, truth, bound, strict=True):
        hold(f"gated_norm backward {path} {what}", *rest)
    return gradients, bound


def fixed_case(n1: int, n2: int, dtype: str, before: bool, parameters: str | None = None) -> GatedCase:
    """A case with a weight, always the same for these arguments."""
    rng = np.random.default_rng(n1 * n2)
    t, v = DTYPES[dtype], DTYPES[parameters or dtype]
    x, gate = rng.normal(size=(2, n1, n2)).astype(t)
    weight, grad_output = rng.normal(size=n2).astype(v), rng.normal(size=(n1, n2)).astype(v)
    return GatedCase(Case(x, weight, None, grad_output, 1e-5, True), gate, before)


def planned(direction: str, n2: int, dtype: str, gating: Gate, n1: int = 8192) -> tuple[Plan, object]:
    """A plan on an H100, and the operands it was made for, without memory."""
    operands = Problem(direction, "rms", n1, n2, dtype).described()
    rows = operands.x if direction == "forward" else operands.grad_input
    gradient = {} if direction == "forward" else {"grad_gate": rows}
    operands = replace(operands, gate=rows, gating=gating, **gradient)
    rung = FORWARD if direction == "forward" else BACKWARD
    return rung.plan(operands, Device.named("h100")), operands
