"""Run a step of a ladder on a case and hold every result to its bound: what the kernel tests and the mutants share."""

import importlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from draws import DTYPES, Case

from normlab import engine, oracle
from normlab.host import norms
from normlab.host.exact import Kept, keep_columns
from normlab.kernels.exact.chains import with_repairs
from normlab.kernels.exact.risk import Limits, limits
from normlab.kernels.exact.spread import LARGE, SMALL
from normlab.kernels.exact.survey import Norms
from normlab.kernels.plan import Chains, Plan
from normlab.oracle.floats import float_format

NO_ROWS = Plan("no rows", (), "nothing is launched", Chains(1, 0), Chains(1, 0))


def with_plan(function: Callable, *args) -> tuple[Any, Plan]:
    """What a function returns, and the one plan that it has launched, by whose chains the results are judged."""
    plans = importlib.import_module("normlab.kernels.plan").Plan  # a mutant's, while its modules are imported afresh
    launch, ran = plans.launch, []

    def noted(plan, *operands):
        ran.append(plan)
        launch(plan, *operands)

    with patch.object(plans, "launch", noted):
        results = function(*args)
    (plan,) = ran or [NO_ROWS]
    return results, plan


def formats(x: np.dtype, output: np.dtype, parameter: np.dtype) -> dict[str, str]:
    """The formats of an `oracle.Arithmetic`, by these dtypes."""
    accumulator = "float64" if x == np.float64 else "float32"
    return {"input": x.name, "output": output.name, "parameter": parameter.name, "accumulator": accumulator}


def arithmetic(case: Case, rows, columns=None, statistics="two_pass", **shards) -> oracle.Arithmetic:
    """How a plan with these chains, (terms, merges), computes a case, in the oracle's words."""
    found = formats(case.x.dtype, case.grad_output.dtype, case.grad_output.dtype)
    return oracle.Arithmetic.of(rows, columns, **found, statistics=statistics, **shards)


def columns_at_risk(weight, bias, bounds: Limits, spread: float = 1.0) -> np.ndarray:
    """The columns at risk, ascending, of parameters as NumPy arrays (n2,), either of which may be None; not both."""
    smallest, normal, ratio = map(float, bounds)
    gamma = 1.0 if weight is None else np.abs(weight.astype(np.float64))
    beta = 0.0 if bias is None else np.abs(bias.astype(np.float64))
    small = np.zeros((), bool) if weight is None else (gamma < smallest) | (gamma * spread < normal)
    return np.flatnonzero(small | (beta > ratio * spread * gamma))


def spread_of(invvar: np.ndarray, eps: float) -> float:
    """The spread of x̂, (n1,) rows."""
    squares = 1 - eps * invvar.astype(np.float64) ** 2
    squares = np.maximum(squares[squares >= -1], 0)
    square = squares.mean() if len(squares) else 1.0
    return 1.0 if square > LARGE else float(np.sqrt(max(square, SMALL)))


def forward(case: Case, step) -> tuple:
    """(output, mean or None, invvar) of a step."""
    if case.rms:
        output, invvar = norms.rms_norm_forward(case.x, case.n2, case.weight, eps=case.eps, step=step.name)
        return output, None, invvar
    return norms.layer_norm_forward(case.x, case.n2, case.weight, case.bias, eps=case.eps, step=step.name)


def keep(case: Case, mean, invvar, columns=None) -> Kept:
    """x̂ of the columns at risk, or of these columns."""
    return keep_columns(case.x, mean, invvar, case.n2, case.weight, case.bias, eps=case.eps, columns=columns)


def backward(case: Case, step, saved, mean, invvar, memory_efficient: bool | str, kept: Kept | None = None) -> tuple:
    """(grad_input, grad_weight or None, grad_bias or None) of a step."""
    rest = {"eps": case.eps, "memory_efficient": memory_efficient, "kept": kept, "step": step.name}
    rest["input_dtype"] = case.x.dtype.name
    if case.rms:
        return *norms.rms_norm_backward(case.grad_output, saved, invvar, case.n2, case.weight, **rest), None
    return norms.layer_norm_backward(case.grad_output, saved, mean, invvar, case.n2, case.weight, case.bias, **rest)


def statistics(case: Case) -> tuple:
    """(output, mean or None, invvar) as no step leaves them: exact, but rounded to their dtypes."""
    truth = forward_truth(case)
    accumulator = np.float64 if case.x.dtype == np.float64 else np.float32
    with np.errstate(over="ignore"):
        output = truth.output.astype(case.grad_output.dtype)
    return output, None if case.rms else truth.mean.astype(accumulator), truth.invvar.astype(accumulator)


def forward_truth(case: Case) -> oracle.NormResult:
    """The oracle's forward."""
    if case.rms:
        return oracle.rms_norm(case.x, case.n2, case.weight, case.eps)
    return oracle.layer_norm(case.x, case.n2, case.weight, case.bias, case.eps)


def forward_bound(case: Case, how: oracle.Arithmetic) -> oracle.NormResult:
    """The bounds of the forward."""
    if case.rms:
        return oracle.rms_norm_bound(case.x, case.n2, case.weight, case.eps, how)
    return oracle.layer_norm_bound(case.x, case.n2, case.weight, case.bias, case.eps, how)


def backward_truth(case: Case) -> oracle.NormGradients:
    """The oracle's gradients."""
    if case.rms:
        return oracle.rms_norm_backward(case.grad_output, case.x, case.n2, case.weight, case.eps)
    return oracle.layer_norm_backward(case.grad_output, case.x, case.n2, case.weight, case.bias, case.eps)


def backward_bound(
    case: Case,
    how: oracle.Arithmetic,
    memory_efficient: bool | str,
    kept: Kept | None = None,
    forward: oracle.Arithmetic | None = None,
) -> oracle.NormGradients:
    """The bounds of the gradients, given what a forward within its own bounds made; forward: None for `how`."""
    errors = forward_bound(case, forward or how)
    rest = {
        "memory_efficient": bool(memory_efficient),
        "kept": None if kept is None else kept.columns,
        "invvar_error": errors.invvar,
        "output_error": errors.output if memory_efficient else None,
    }
    args = (case.grad_output, case.x, case.n2, case.weight)
    if case.rms:
        return oracle.rms_norm_backward_bound(*args, case.eps, how, **rest)
    return oracle.layer_norm_backward_bound(*args, case.bias, case.eps, how, mean_error=errors.mean, **rest)


def as_truth(gradient: np.ndarray) -> np.ndarray:
    """Return one mode's gradient in float64, for the other mode to be held to.

    An overflow that its own bound allows stands for the largest finite number here: the truth may be no larger.
    """
    largest = float(float_format(gradient.dtype).largest)
    return np.clip(gradient.astype(np.float64), -largest, largest)


def hold(what: str, got, want, bound) -> float:
    """Assert got within its bound; what is absent must be absent on both sides. Records and gives err / bound."""
    if want is None or got is None:
        assert want is got, f"{what}: got {got}, want {want}"
        return 0.0
    ratio = oracle.assert_within(got, want, bound, what)
    record(what, ratio)
    return ratio


def examine_forward(case: Case, step, run: Callable = forward) -> dict[str, float]:
    """Hold a forward step to the oracle, run by `run`. Returns err / bound of each result."""
    got, plan = with_plan(run, case, step)
    bound = forward_bound(case, arithmetic(case, plan.rows, statistics=step.statistics))
    results = zip(("output", "mean", "invvar"), got, forward_truth(case), bound, strict=True)
    return {what: hold(f"forward {step.name} {what}", *rest) for what, *rest in results}


def examine_backward(
    case: Case, forward_step, step, memory_efficient: bool | str, run: Callable = backward
) -> dict[str, float]:
    """Hold a backward step to the oracle, run by `run`. Returns err / bound of each gradient.

    It is fed by a forward step, or by the oracle where that is None, which spares the simulator the forward.
    """
    if forward_step is None:
        (output, mean, invvar), before = statistics(case), arithmetic(case, Chains(1, 0))
    else:
        (output, mean, invvar), plan = with_plan(forward, case, forward_step)
        before = arithmetic(case, plan.rows, statistics=forward_step.statistics)
    saved = output if memory_efficient else case.x
    kept = keep(case, mean, invvar) if memory_efficient == "exact" else None
    gradients, plan = with_plan(run, case, step, saved, mean, invvar, memory_efficient, kept)
    rows, columns = plan.rows, plan.columns
    if kept is not None and len(case.x):
        rows, columns = with_repairs(rows, columns, *kept.values.shape)
    bound = backward_bound(case, arithmetic(case, rows, columns), memory_efficient, kept, before)
    path = {False: "saved", True: "recompute"}.get(memory_efficient, memory_efficient)
    results = zip(("grad_input", "grad_weight", "grad_bias"), gradients, backward_truth(case), bound, strict=True)
    return {what: hold(f"backward {step.name} {path} {what}", *rest) for what, *rest in results}


def examine_survey(
    launch_survey: Callable, sizes: list[int], dtype: str, given_parameters: tuple[bool, bool], seed: int
) -> None:
    """Assert that a survey lists the columns of each norm of so many columns, and writes nothing else.

    Their parameters lie in any order, with other numbers between them. given_parameters: is there a weight, a bias?
    launch_survey: `normlab.kernels.exact.survey`'s, which a mutant may have changed.
    """
    random = np.random.default_rng(seed)
    memory = np.full(sum(sizes) * 2 + 7 * len(sizes), np.nan, DTYPES[dtype])
    bounds = limits(np.float32(1e-5), dtype)
    spreads = random.choice([1.0, 0.25, 2.0**-7], len(sizes)).astype(np.float32)
    columns, counts = np.full(sum(sizes) + 9, -7, np.int32), np.full(len(sizes), -7)
    want, found_counts = columns.copy(), counts.copy()
    table, end, slot = np.zeros((len(sizes), 5), np.int64), len(memory), 3
    for row, n2 in enumerate(sizes):
        parameters = random.normal(size=(2, n2)).astype(memory.dtype)
        special = random.choice([0.0, -0.0, 1e-6, 1.5e-5, 100], (2, n2))
        parameters = np.where(random.random((2, n2)) < 0.3, special, parameters).astype(memory.dtype)
        starts = []
        for parameter in parameters:
            end -= n2
            memory[end : end + n2] = parameter
            starts.append(end)
        end -= 7
        table[row] = n2, *starts, len(sizes) - 1 - row, slot
        weight, bias = (one if there else None for one, there in zip(parameters, given_parameters, strict=True))
        found = columns_at_risk(weight, bias, bounds, spreads[len(sizes) - 1 - row])
        want[slot : slot + n2] = [*found, *[-1] * (n2 - len(found))]
        found_counts[row] = len(found)
        slot += n2
    weights, biases = (memory if there else None for there in given_parameters)
    world = "gpu" if engine.use_gpu() else "simulator"
    for schedule in ("forward", "reverse"):
        listed, told = columns.copy(), counts.copy()
        with engine.using(world, schedule):
            norms = Norms(max(sizes), table, weights, biases, spreads)
            launch_survey(engine.launch, norms, bounds, listed, told)
        np.testing.assert_array_equal(told, found_counts)
        np.testing.assert_array_equal(listed, want)


def record(what: str, ratio: float) -> None:
    """Note an err / bound for the table at the end of the test run (see conftest)."""
    folder = os.environ.get("NORMLAB_TIGHTNESS")
    if folder:
        with Path(folder, f"{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps([what, ratio]) + "\n")
