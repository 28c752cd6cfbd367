"""Hold norms of x + residual to the oracle: what their tests and the mutants share."""

from dataclasses import dataclass, replace

import numpy as np
from draws import DTYPES, MIXED, Case, cases
from examine import arithmetic, hold, with_plan
from hypothesis import strategies as st

from normlab import oracle
from normlab.host import add_norm
from normlab.kernels import LADDERS
from normlab.kernels.apart import EXTRA

STATISTICS = {step.name: step.statistics for step in LADDERS["forward"]} | {
    "split_rows": "grouped",
    "no rows": "two_pass",
}


@dataclass(frozen=True)
class AddCase:
    """What a norm of a sum takes: `norm` is the plain norm's case, and its x is the residual."""

    norm: Case
    x: np.ndarray  # (n1, n2), the residual's dtype or another one
    grad_residual: np.ndarray | None  # (n1, n2), the residual's dtype
    offset: float

    @property
    def gamma(self) -> tuple:
        """The weight, and the bias of a LayerNorm."""
        return (self.norm.weight,) if self.norm.rms else (self.norm.weight, self.norm.bias)

    @property
    def shift(self) -> dict[str, float]:
        """The offset, which LayerNorms do not have."""
        return {"offset": self.offset} if self.norm.rms else {}


@st.composite
def add_cases(draw, **options) -> AddCase:
    """A case, from that of a plain norm."""
    norm = draw(cases(**options))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1), label="seed of x"))
    kind = norm.x.dtype.name
    others = [kind, *(other for mine, other in MIXED if mine == kind)]
    x = rng.normal(size=norm.x.shape).astype(DTYPES[draw(st.sampled_from(others), label="x's dtype")])
    grad = rng.normal(size=norm.x.shape).astype(norm.x.dtype) if draw(st.booleans(), label="grad_residual?") else None
    offset = draw(st.sampled_from([0.0, 1.0]), label="offset") if norm.rms else 0.0
    return AddCase(norm, x, grad, offset)


def forward(case: AddCase) -> tuple:
    """(output, new_residual, mean or None, invvar)."""
    norm = case.norm
    return add_norm.forward(case.x, norm.x, norm.weight, norm.bias, norm.eps, norm.rms, case.offset)


def backward(case: AddCase, saved, mean, invvar, memory_efficient: bool) -> tuple:
    """(grad, grad_weight or None, grad_bias or None)."""
    norm = case.norm
    given = norm.grad_output, case.grad_residual, saved, mean, invvar, norm.weight, norm.bias
    rest = norm.eps, norm.rms, case.offset, memory_efficient, norm.x.dtype.name
    return add_norm.backward(add_norm.AddNormBackward(*given, *rest))


def forward_truth(case: AddCase) -> oracle.AddNormResult:
    """The oracle's forward."""
    function = oracle.add_rms_norm if case.norm.rms else oracle.add_layer_norm
    return function(case.x, case.norm.x, *case.gamma, case.norm.eps, **case.shift)


def forward_bound(case: AddCase, how: oracle.Arithmetic) -> oracle.NormResult:
    """The bounds of the forward; that of new_residual is 0."""
    function = oracle.add_rms_norm_bound if case.norm.rms else oracle.add_layer_norm_bound
    return function(forward_truth(case).new_residual, *case.gamma, case.norm.eps, how, **case.shift)


def backward_truth(case: AddCase) -> oracle.NormGradients:
    """The oracle's gradients."""
    function = oracle.add_rms_norm_backward if case.norm.rms else oracle.add_layer_norm_backward
    given = case.norm.grad_output, case.grad_residual, forward_truth(case).new_residual
    return function(*given, *case.gamma, case.norm.eps, **case.shift)


def backward_bound(case: AddCase, how: oracle.Arithmetic, memory_efficient: bool, errors) -> oracle.NormGradients:
    """The bounds of the gradients, given what a forward within its own bounds has made."""
    function = oracle.add_rms_norm_backward_bound if case.norm.rms else oracle.add_layer_norm_backward_bound
    given = case.norm.grad_output, case.grad_residual, forward_truth(case).new_residual
    rest = {"memory_efficient": memory_efficient, "errors": errors, **case.shift}
    return function(*given, *case.gamma, case.norm.eps, how, **rest)


def examine_add_forward(case: AddCase) -> tuple[tuple, oracle.NormResult]:
    """Hold a forward to the oracle, and new_residual to every bit. Returns its results, and the bounds they keep."""
    results, plan = with_plan(forward, case)
    output, new_residual, mean, invvar = results
    truth = forward_truth(case)
    assert new_residual.dtype == truth.new_residual.dtype
    assert new_residual.tobytes() == truth.new_residual.tobytes(), "new_residual"
    bound = forward_bound(case, arithmetic(case.norm, plan.rows, statistics=STATISTICS[plan.step.removesuffix(EXTRA)]))
    for what, got, want, allowed in zip(
        ("output", "mean", "invvar"), (output, mean, invvar), (truth.output, *truth[2:]), bound, strict=True
    ):
        hold(f"add_norm forward {what}", got, want, allowed)
    return results, bound


def examine_add_backward(case: AddCase, memory_efficient: bool) -> tuple:
    """Hold a forward and its backward to the oracle. Returns the gradients and their bounds."""
    (output, new_residual, mean, invvar), errors = examine_add_forward(case)
    saved = output if memory_efficient else new_residual
    gradients, plan = with_plan(backward, case, saved, mean, invvar, memory_efficient)
    bound = backward_bound(case, arithmetic(case.norm, plan.rows, plan.columns), memory_efficient, errors)
    path = "recompute" if memory_efficient else "saved"
    named = zip(("grad", "grad_weight", "grad_bias"), gradients, backward_truth(case), bound, strict=True)
    for what, *rest in named:
        hold(f"add_norm backward {path} {what}", *rest)
    return gradients, bound


def fixed_case(n1: int, n2: int, dtype: str, rms: bool, offset: float = 0.0, parameters: str | None = None) -> AddCase:
    """A case with both parameters and a gradient at new_residual, always the same for these arguments."""
    rng = np.random.default_rng(n1 * n2)
    t, v = DTYPES[dtype], DTYPES[parameters or dtype]
    x, residual, grad_residual = rng.normal(size=(3, n1, n2)).astype(t)
    weight, bias = rng.normal(size=(2, n2)).astype(v)
    grad_output = rng.normal(size=(n1, n2)).astype(v)
    norm = Case(residual, weight, None if rms else bias, grad_output, 1e-5, rms)
    return AddCase(norm, x, grad_residual, offset)


def without_residual(case: AddCase) -> AddCase:
    """The case with zeros as its residual: the plain norm of x."""
    return replace(case, norm=replace(case.norm, x=np.zeros_like(case.norm.x)))
