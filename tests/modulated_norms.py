"""Hold LayerNorms modulated per sample to the oracle: what their tests and the mutants share."""

from dataclasses import dataclass

import numpy as np
from add_norms import STATISTICS
from draws import DTYPES, EPS, MIXED, SAME, WIDTHS, inputs
from examine import formats, hold, with_plan
from hypothesis import strategies as st

from normlab import oracle
from normlab.host import modulated_norm
from normlab.kernels.apart import EXTRA


@dataclass(frozen=True)
class ModulatedCase:
    """What a modulated norm takes."""

    x: np.ndarray  # (samples, rows, n), dtype T
    scale: np.ndarray  # (samples, n), dtype V
    shift: np.ndarray  # (samples, n), dtype V
    grad_output: np.ndarray  # as x, dtype V
    eps: float


@st.composite
def modulated_cases(draw, widths=tuple(WIDTHS), rows=(1, 2, 5), dtypes=(*SAME, *MIXED)) -> ModulatedCase:
    """A case, from a seed and a handful of choices."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1), label="seed"))
    samples, n1 = draw(st.sampled_from([1, 2, 3]), label="samples"), draw(st.sampled_from(rows), label="rows")
    n2 = draw(st.sampled_from(widths), label="n2")
    t, v = (DTYPES[name] for name in draw(st.sampled_from(dtypes), label="dtypes of x and of scale"))
    kind = draw(st.sampled_from(["normal", "offset", "outlier", "equal", "tiny"]), label="x")
    scale = draw(st.sampled_from([0.1, 1.0, 100.0]), label="size of the scale") * rng.normal(size=(samples, n2))
    scale = np.where(rng.random(scale.shape) < 0.1, -1, scale)  # gamma is 0 there
    x = inputs(kind, rng, samples * n1, n2).reshape(samples, n1, n2).astype(t)
    shift, grad_output = rng.normal(size=(samples, n2)), rng.normal(size=x.shape)
    eps = draw(st.sampled_from(EPS), label="eps")
    return ModulatedCase(x, scale.astype(v), shift.astype(v), grad_output.astype(v), eps)


def fixed_case(samples: int, rows: int, n2: int, dtype: str, parameters: str | None = None) -> ModulatedCase:
    """A case that is always the same for these arguments."""
    rng = np.random.default_rng(samples * rows * n2)
    t, v = DTYPES[dtype], DTYPES[parameters or dtype]
    x, grad_output = rng.normal(size=(2, samples, rows, n2))
    scale, shift = rng.normal(size=(2, samples, n2)).astype(v)
    return ModulatedCase(x.astype(t), scale, shift, grad_output.astype(v), 1e-5)


def forward(case: ModulatedCase) -> tuple:
    """(output, mean, invvar)."""
    return modulated_norm.modulated_layer_norm_forward(case.x, case.scale, case.shift, eps=case.eps)


def backward(case: ModulatedCase, mean, invvar) -> tuple:
    """(grad_x, grad_scale, grad_shift)."""
    given = case.grad_output, case.x, mean, invvar, case.scale, case.shift
    return modulated_norm.modulated_layer_norm_backward(*given)


def arithmetic(case: ModulatedCase, plan, statistics: str = "two_pass") -> oracle.Arithmetic:
    """How a plan computes a case, in the oracle's words."""
    found = formats(case.x.dtype, case.grad_output.dtype, case.grad_output.dtype)
    return oracle.Arithmetic.of(plan.rows, plan.columns, **found, statistics=statistics)


def examine_modulated(case: ModulatedCase) -> tuple:
    """Hold a forward and its backward to the oracle. Returns their plans."""
    given = case.x, case.scale, case.shift, case.eps
    results, before = with_plan(forward, case)
    how = arithmetic(case, before, STATISTICS[before.step.removesuffix(EXTRA)])
    errors = oracle.modulated_layer_norm_bound(*given, how)
    truth = oracle.modulated_layer_norm(*given)
    for what, *rest in zip(("output", "mean", "invvar"), results, truth, errors, strict=True):
        hold(f"modulated_norm forward {what}", *rest)
    gradients, after = with_plan(backward, case, *results[1:])
    bound = oracle.modulated_layer_norm_backward_bound(case.grad_output, *given, arithmetic(case, after), errors=errors)
    truth = oracle.modulated_layer_norm_backward(case.grad_output, *given)
    for what, *rest in zip(("grad_x", "grad_scale", "grad_shift"), gradients, truth, bound, strict=True):
        hold(f"modulated_norm backward {what}", *rest)
    return before, after
