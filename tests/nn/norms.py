"""For the tests of normlab.nn: cases of `draws` run through PyTorch, and the bounds of what comes back."""

import ml_dtypes
import numpy as np
import torch
from draws import Case
from examine import backward_bound, backward_truth, forward_bound, forward_truth, hold

from normlab import nn, oracle
from normlab.kernels.exact.risk import RATIO

MODES = (False, True, "exact")


def tensor(array: np.ndarray | None, requires_grad: bool = False) -> torch.Tensor | None:
    """A NumPy array as a tensor of its dtype."""
    if array is None:
        return None
    made = torch.from_numpy(np.ascontiguousarray(array, np.float64)).to(getattr(torch, array.dtype.name))
    return made.requires_grad_(requires_grad)


def array(tensor: torch.Tensor | None) -> np.ndarray | None:
    """A tensor as a NumPy array of its dtype."""
    if tensor is None:
        return None
    dtype = np.dtype(getattr(ml_dtypes, "bfloat16")) if tensor.dtype == torch.bfloat16 else None  # noqa: B009
    return tensor.detach().double().numpy().astype(dtype or str(tensor.dtype).removeprefix("torch."))


def apply(case: Case, x, weight, bias, memory_efficient):
    """The output of a case's norm on tensors."""
    if case.rms:
        return nn.rms_norm(x, case.n2, weight, case.eps, memory_efficient)
    return nn.layer_norm(x, case.n2, weight, bias, case.eps, memory_efficient)


def through_torch(case: Case, memory_efficient) -> tuple:
    """(output, (grad_input, grad_weight, grad_bias)) of a case, as arrays."""
    leaves = [tensor(values, requires_grad=True) for values in (case.x, case.weight, case.bias)]
    output = apply(case, *leaves, memory_efficient)
    output.backward(tensor(case.grad_output))
    return array(output), tuple(None if leaf is None else array(leaf.grad) for leaf in leaves)


def arithmetic(case: Case) -> oracle.Arithmetic:
    """How `normlab.nn.vectorised` computes, in the oracle's words: sums in any order, statistics by Welford."""
    n1, n2 = case.x.shape
    v = case.grad_output.dtype.name
    return oracle.Arithmetic(
        input=case.x.dtype.name,
        output=v,
        parameter=v,
        accumulator="float64" if case.x.dtype == np.float64 else "float32",
        row_terms=n2 + 4,
        row_merges=0,
        column_terms=max(1, n1) + 1,
        column_merges=0,
        statistics="welford",
    )


def exact_bound(case: Case, how: oracle.Arithmetic) -> oracle.NormGradients:
    """The saved input's bounds, and what the rounding of a stored output or x̂ adds to them.

    With δ that rounding as an error of x̂: ∂L/∂γ is off by Σ |∂L/∂y| δ more, ∂L/∂x by (δ |mean(g x̂)| +
    (|x̂| + δ) mean(|g| δ)) r.
    """
    saved = backward_bound(case, how, False)
    truth = forward_truth(case)
    x, dy = case.x.astype(np.float64), case.grad_output.astype(np.float64)
    gamma = np.ones(case.n2) if case.weight is None else case.weight.astype(np.float64)
    beta = np.zeros(case.n2) if case.bias is None else case.bias.astype(np.float64)
    invvar = truth.invvar[:, None]
    xhat = (x if truth.mean is None else x - truth.mean[:, None]) * invvar
    plain = Case(case.x, None, None, case.grad_output, case.eps, case.rms)
    kept = forward_bound(plain, how).output
    u = oracle.unit_roundoff(how.accumulator)
    g = dy * gamma
    wider = 1 + 2.0**-6  # products of two roundings
    with np.errstate(all="ignore"):
        stored = forward_bound(case, how).output / abs(gamma) + 4 * u * (abs(beta / gamma) + abs(xhat))
        delta = np.where(columns_at_risk(case), kept, stored)
        through_product, through_mean = delta * abs(mean(g * xhat)), (abs(xhat) + delta) * mean(abs(g) * delta)
        at_input, at_weight = (through_product + through_mean) * invvar, (abs(dy) * delta).sum(axis=0)
    return oracle.NormGradients(
        (saved.grad_input + unknown_if_nan(at_input)) * wider,
        None if saved.grad_weight is None else (saved.grad_weight + unknown_if_nan(at_weight)) * wider,
        saved.grad_bias,
    )


def mean(terms: np.ndarray) -> np.ndarray:
    """Over a row."""
    return terms.mean(axis=1, keepdims=True)


def unknown_if_nan(bound: np.ndarray) -> np.ndarray:
    """Infinite where an infinite bound met a 0."""
    return np.where(np.isnan(bound), np.inf, bound)


def columns_at_risk(case: Case) -> np.ndarray:
    """(n2,) booleans: the exact mode's criterion, in NumPy."""
    eps = case.eps if case.x.dtype == np.float64 else float(np.float32(case.eps))
    smallest = max(eps, float(ml_dtypes.finfo(case.grad_output.dtype).smallest_normal))
    gamma = np.ones(case.n2) if case.weight is None else abs(case.weight.astype(np.float64))
    beta = np.zeros(case.n2) if case.bias is None else abs(case.bias.astype(np.float64))
    return ((gamma < smallest) & (case.weight is not None)) | (beta > RATIO * gamma)


def hold_to_bounds(case: Case, memory_efficient, output, gradients) -> None:
    """Assert that what came back is within the oracle's bounds."""
    how = arithmetic(case)
    hold("nn output", output, forward_truth(case).output, forward_bound(case, how).output)
    if memory_efficient == "exact":
        bound = exact_bound(case, how)
    else:
        bound = backward_bound(case, how, memory_efficient)
    names = ("grad_input", "grad_weight", "grad_bias")
    for name, got, want, limit in zip(names, gradients, backward_truth(case), bound, strict=True):
        hold(f"nn {memory_efficient} {name}", got, want, limit)
