"""Run and measure the passes over one layer: the forward, and the backward on three paths.

A path is what the host functions call memory_efficient: False, from the saved input; True, recomputed from the output;
"exact", recomputed except for the columns that were kept. `normlab.studies.compare` calls the passes. The kernels run
through `normlab.host.norms`. Every result is held against `normlab.oracle`: the float64 truth on the same rounded
inputs, and the a-priori bound.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from normlab import engine, oracle
from normlab.host import norms
from normlab.host.exact import Kept, keep_columns
from normlab.studies.compare.measure import Error, measure
from normlab.studies.compare.plan import Plan
from normlab.studies.compare.traffic import Layer

Path = bool | Literal["exact"]
PATHS: tuple[Path, ...] = (False, True, "exact")
GRADIENTS = ("grad_input", "grad_weight", "grad_bias")


@dataclass(frozen=True)
class Backward:
    """One path's gradients. `grad_bias` is None for RMSNorm.

    `bytes_kept`: what the norm alone keeps from the forward for this backward. `bytes_kept_with_output`: the same,
    counting the output too where the backward reads it, which costs nothing if the next layer keeps it anyway.
    """

    grad_input: Error
    grad_weight: Error
    grad_bias: Error | None
    bytes_kept: int
    bytes_kept_with_output: int

    @property
    def gradients(self) -> dict[str, Error]:
        """Return the gradients there are, by name."""
        return {name: getattr(self, name) for name in GRADIENTS if getattr(self, name) is not None}


class Forward(NamedTuple):
    """What the forward left for the backward, and how far it is off."""

    output: np.ndarray  # (n1, n2)
    mean: np.ndarray | None  # (n1,); None for RMSNorm
    invvar: np.ndarray  # (n1,)
    kept: Kept  # for the exact backward
    bound: oracle.NormResult
    error: Error


class Pass(NamedTuple):
    """One backward: its numbers, and the largest grad_input bound of each column, (n2,)."""

    backward: Backward
    column_bounds: np.ndarray


@contextmanager
def _world(plan: Plan) -> Iterator[None]:
    """Use the plan's engine, without the warning that the simulator is slow: `Job.seconds` has said so already."""
    with engine.using(plan.engine), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the simulator takes about", category=UserWarning)
        yield


def run_forward(layer: Layer, plan: Plan) -> Forward:
    """Run the forward through the kernels, and measure it."""
    x, n2, weight, bias, eps = layer.input, layer.input.shape[1], layer.weight, layer.bias, layer.eps
    with _world(plan):
        output, mean, invvar = norms.forward(x, n2, weight, bias, eps, plan.rms, plan.forward)
        kept = keep_columns(x, mean, invvar, n2, weight, bias, eps=eps)
    given, arithmetic = (x, n2, *layer.parameters, eps), plan.arithmetic("forward", *x.shape)
    truth: Any = oracle.rms_norm if plan.rms else oracle.layer_norm
    limits: Any = oracle.rms_norm_bound if plan.rms else oracle.layer_norm_bound
    want, bound = truth(*given), limits(*given, arithmetic)
    return Forward(output, mean, invvar, kept, bound, measure(output, want.output, bound.output))


def run_backward(layer: Layer, plan: Plan, forward: Forward, path: Path) -> Pass | None:
    """Run one backward through the kernels from what the forward left for this path, and measure it.

    None: no column was kept, and so the exact path is the recomputed one, launch by launch.
    """
    kept = forward.kept if path == "exact" else None
    if kept is not None and not kept.columns.size:
        return None
    saved = forward.output if path else layer.input
    got = _gradients(layer, plan, forward, saved, path, kept)
    want, bound = _truth(layer, plan, forward, path, kept)
    grad_input, grad_weight, grad_bias = (
        None if array is None or allowed is None or truth is None else measure(array, truth, allowed)
        for array, truth, allowed in zip(got, want, bound, strict=True)
    )
    assert grad_input is not None
    assert grad_weight is not None  # the weight is always given
    beside = [forward.invvar, *(kept or ())]  # besides what was saved
    if forward.mean is not None and not path:
        beside.append(forward.mean)
    bytes_beside = sum(array.nbytes for array in beside)
    bytes_in_all = bytes_beside + saved.nbytes
    backward = Backward(grad_input, grad_weight, grad_bias, bytes_beside if path else bytes_in_all, bytes_in_all)
    return Pass(backward, bound.grad_input.max(axis=0))


def _gradients(
    layer: Layer, plan: Plan, forward: Forward, saved: np.ndarray, path: Path, kept: Kept | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    given = layer.grad_output, saved, forward.mean, forward.invvar, saved.shape[1], layer.weight, layer.bias
    with _world(plan):
        return norms.backward(norms.BackwardCall(*given, layer.eps, plan.rms, path, kept, None, plan.backward))


def _truth(
    layer: Layer, plan: Plan, forward: Forward, path: Path, kept: Kept | None
) -> tuple[oracle.NormGradients, oracle.NormGradients]:
    """Return the float64 gradients, and the bounds of a kernel that gets this forward's statistics and output."""
    n1, n2 = layer.input.shape
    columns = None if kept is None else kept.columns
    arithmetic = plan.arithmetic("backward", n1, n2, 0 if columns is None else columns.size)
    given = layer.grad_output, layer.input, n2, *layer.parameters, layer.eps
    how: dict[str, Any] = {"memory_efficient": bool(path), "kept": columns}
    how |= {"invvar_error": forward.bound.invvar, "output_error": forward.bound.output}
    truth: Any = oracle.rms_norm_backward if plan.rms else oracle.layer_norm_backward
    limits: Any = oracle.rms_norm_backward_bound if plan.rms else oracle.layer_norm_backward_bound
    if not plan.rms:
        how["mean_error"] = forward.bound.mean
    return truth(*given), limits(*given, arithmetic, **how)
