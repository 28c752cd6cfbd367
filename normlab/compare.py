"""`normlab compare`: is recomputing from the saved output as good as saving the input, on this data?

Each layer runs through the kernels three times: forward, backward from the saved input, backward from the saved output
(apex's `memory_efficient`). Every result is held against the float64 oracle on the same inputs, rounded to the same
dtype, and against its a-priori bound. Called by `normlab.cli`, drawn by `normlab.report`; nothing is printed here. It
calls `normlab.ops`, `normlab.oracle` and, for the names and sums of the steps, `normlab.kernels`.
"""

import os
import signal
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.resources import files
from math import prod
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from normlab import engine, ops, oracle
from normlab.arrays import FLOATS
from normlab.kernels import LADDERS

# What a pass costs in the simulator (2-core 2.5 GHz machine): microseconds an element, and a column, whatever the rows.
# A step that is not listed counts as the slowest. SIMULATOR_STEPS run there by default: quick, and no cost a column.
SIMULATOR_COST = {
    "forward": {
        "thread_per_row": (3, 0),
        "block_tree": (14, 0),
        "warp_shuffle": (20, 0),
        "apex": (22, 0),
        "column_blocks": (23, 0),
    },
    "backward": {"global_atomics": (32, 0), "apex": (21, 2200)},
}
SIMULATOR_STEPS = {"forward": "thread_per_row", "backward": "global_atomics"}
ORACLE_COST = 6  # microseconds an element, values and bounds of all three passes
BUDGET = 14.0  # seconds that a run without --rows may take by this reckoning; the rest of the 20 is reserve
WORTH_PROCESSES = 3.0  # seconds of work below which a second process (0.7 s to start) does not pay

AT_RISK = 10.0  # a channel whose recompute bound exceeds its saved-input bound by this factor
AS_GOOD = 2.0  # recomputing is "as good" up to this factor of the saved input's error
ARRAYS = ("input", "weight", "bias", "grad_output", "eps")
GRADIENTS = ("grad_input", "grad_weight", "grad_bias")
SEED = 160706450  # not 0: whoever drew their input with seed 0 would get it back as the gradient
DEFAULT_EPS = 1e-5


class InputError(Exception):
    """Something is wrong with what the user gave; the message is one line, for the user."""


# ---- what to compare: the bundled layers, or a file ------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """One layer as it was found, unchecked: `arrays` has "input" and whichever others of ARRAYS there are."""

    name: str
    arrays: dict[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, int]:
        """(n1, n2): rows, and elements a row, which is the last dimension."""
        *leading, n2 = np.shape(self.arrays["input"])
        return prod(leading), n2


def bundled() -> list[Source]:
    """Three layers of all-MiniLM-L6-v2, from `normlab/data` (its README says more)."""
    with (files("normlab") / "data" / "minilm_layernorm.npz").open("rb") as file:
        data = dict(np.load(file, allow_pickle=False))
    names = [key.removesuffix("_input") for key in data if key.endswith("_input") and not key.endswith("_grad_input")]
    return [
        Source(name, {"eps": data["eps"]} | {key: data[f"{name}_{key}"] for key in ARRAYS if key != "eps"})
        for name in names
    ]


def read(path: Path) -> Source:
    """A layer from a .npy (the input alone) or a .npz (ARRAYS). Nothing that could run code is loaded.

    Raises:
        InputError: no such file, none that NumPy reads without pickle, no input in it, or shapes that do not fit.
    """
    shown = str(path).encode("utf-8", "replace").decode()
    if path.is_dir():
        raise InputError(f"{shown} is a directory; give a .npy or .npz file")
    if not path.exists():
        raise InputError(f"{shown}: no such file")
    if not path.is_file():
        raise InputError(f"{shown} is not a regular file, which NumPy needs")
    with _reading(shown):
        with path.open("rb") as file:
            start = file.read(8)
        if start.startswith(b"\x93NUMPY"):
            arrays: dict[str, Any] = {"input": _load_npy(path)}
        elif start.startswith(b"PK"):
            with np.load(path, allow_pickle=False) as archive:
                arrays = {key: archive[key] if key in ARRAYS else None for key in archive.files}
        else:
            raise InputError(f"{shown} {_what_else(start)}; give a .npy or .npz file")
    others = ", ".join(sorted(key for key in arrays if key not in ARRAYS))
    if "input" not in arrays:
        raise InputError(f"{shown} has no array named 'input'; it has {others or 'none at all'}")
    notes = (f"not read from the file: {others}",) if others else ()
    name = path.stem.encode("utf-8", "replace").decode()
    source = Source(name, {key: array for key, array in arrays.items() if key in ARRAYS}, notes)
    check(source)
    return source


@contextmanager
def _reading(shown: str) -> Iterator[None]:
    """Everything that NumPy raises on a broken file, as one InputError."""
    try:
        yield
    except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        if "object" in str(error).lower():
            raise InputError(f"{shown} holds Python objects (a pickle), not numbers; they are not loaded") from None
        reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{shown} cannot be read: {reason}") from None


def _load_npy(path: Path) -> Any:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)  # only the rows that are taken are read from disk
    except ValueError:  # what cannot be mapped, such as an array without elements
        return np.load(path, allow_pickle=False)


def _what_else(start: bytes) -> str:
    if not start:
        return "is an empty file"
    return "is a pickle, which may run code and is not loaded" if start[0] == 0x80 else "is not a NumPy file"


def check(source: Source) -> None:
    """InputError unless a source's arrays hold real numbers, and their shapes fit."""
    arrays = source.arrays
    for key in ARRAYS:
        if key in arrays:
            _check_numbers(key, arrays[key])
    shape = np.shape(arrays["input"])
    if not shape:
        raise InputError("input is a single number; it needs rows: (n1, n2), the last dimension is normalised")
    if not prod(shape):
        raise InputError(f"input of shape {shape} is empty")
    expected = {"weight": shape[-1:], "bias": shape[-1:], "grad_output": shape}
    for key, needed in expected.items():
        if key in arrays and np.shape(arrays[key]) != needed:
            raise InputError(f"{key} has shape {np.shape(arrays[key])}, but input of shape {shape} needs {needed}")
    if "eps" in arrays and (np.size(arrays["eps"]) != 1 or not 0 <= np.reshape(arrays["eps"], -1)[0] < np.inf):
        raise InputError("eps must be one finite number, not below 0")


def _check_numbers(key: str, array: Any) -> None:
    if not isinstance(array, np.ndarray):
        raise InputError(f"{key} is not a NumPy array")
    if array.dtype.kind == "V" and array.dtype.itemsize == 2 and array.dtype.names is None:
        raise InputError(f"{key} has raw 2-byte values: save bfloat16 as float32, and compare with --dtype bfloat16")
    if array.dtype.kind not in "fiu":
        raise InputError(f"{key} holds {array.dtype} values; real numbers are needed")


# ---- how to compare --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """Which norm, in which dtype, where ("gpu" or "simulator"), by which steps of the two ladders."""

    norm: str
    dtype: str
    engine: str
    forward: str
    backward: str

    @property
    def rms(self) -> bool:
        """RMSNorm, which has no mean and no bias."""
        return self.norm == "rms"

    @property
    def statistics(self) -> str:
        """The dtype that kernels compute in and keep mean and invvar in."""
        return "float64" if self.dtype == "float64" else "float32"

    def arithmetic(self, ladder: str, n1: int, n2: int) -> oracle.Arithmetic:
        """How the step of a ladder rounds: its formats, and the length of its sums."""
        forward, backward = _step("forward", self.forward), _step("backward", self.backward)
        rows = (forward if ladder == "forward" else backward).row_chains(n2)
        columns = backward.column_chains(n1)
        return oracle.Arithmetic(
            input=self.dtype,
            output=self.dtype,
            parameter=self.dtype,
            accumulator=self.statistics,
            row_terms=rows.terms,
            row_merges=rows.merges,
            column_terms=columns.terms,
            column_merges=columns.merges,
            statistics=forward.statistics,
        )

    @property
    def cost(self) -> tuple[float, float]:
        """Microseconds that one core takes: an element, and a column. Forward, both backwards, the oracle."""
        if self.engine == "gpu":
            return ORACLE_COST, 0
        forward = SIMULATOR_COST["forward"].get(self.forward) or max(SIMULATOR_COST["forward"].values())
        backward = SIMULATOR_COST["backward"].get(self.backward) or max(SIMULATOR_COST["backward"].values())
        return ORACLE_COST + forward[0] + 2 * backward[0], forward[1] + 2 * backward[1]

    def seconds(self, rows: int, columns: int) -> float:
        """About how long one core works on a layer."""
        element, column = self.cost
        return (rows * element + column) * columns * 1e-6

    def rows_within(self, seconds: float, columns: int) -> int:
        """How many rows one core can do in that time, one at least."""
        element, column = self.cost
        return max(1, int((seconds * 1e6 / columns - column) / element))


def _step(ladder: str, name: str) -> Any:
    return next(step for step in LADDERS[ladder] if step.name == name)


def plan(norm: str = "layer", dtype: str = "float32", world: str = "auto", step: str | None = None) -> Plan:
    """Choose engine and steps: `step` on ladders that have it; else on a GPU the last, in the simulator the fastest.

    Raises:
        InputError: a step that no ladder has, or "gpu" where there is none.
    """
    try:
        with engine.using(world):
            chosen = "gpu" if engine.use_gpu() else "simulator"
    except RuntimeError as error:
        raise InputError(str(error)) from None
    names = {ladder: [known.name for known in LADDERS[ladder]] for ladder in ("forward", "backward")}
    if step is not None and not any(step in known for known in names.values()):
        known = "; ".join(f"{ladder}: {', '.join(known)}" for ladder, known in names.items())
        raise InputError(f"unknown step {step!r}; known are, {known}")
    default = SIMULATOR_STEPS if chosen == "simulator" else {ladder: known[-1] for ladder, known in names.items()}
    steps = {ladder: step if step in known else default[ladder] for ladder, known in names.items()}
    return Plan(norm, dtype, chosen, str(steps["forward"]), str(steps["backward"]))


@dataclass(frozen=True)
class Layer:
    """One norm's traffic, checked, in the dtype that is compared: the first `rows` of `rows_total`."""

    name: str
    input: np.ndarray  # (rows, n2)
    grad_output: np.ndarray  # (rows, n2)
    weight: np.ndarray  # (n2,)
    bias: np.ndarray | None  # (n2,); None for RMSNorm
    eps: float
    rows_total: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """Everything chosen and read, nothing run. `processes` to run it in, and about how many `seconds` that takes."""

    layers: list[Layer]
    plan: Plan
    processes: int
    seconds: float


def prepare(sources: list[Source], plan: Plan, rows: int | None = None) -> Job:
    """Take the first `rows` of every source, or as many as fit into the time, and round them to the plan's dtype.

    Raises:
        InputError: NaN or infinity in the data, or values too large for the dtype.
    """
    cores = 1 if plan.engine == "gpu" else min(processors(), 2)  # two backwards a layer can run side by side
    columns = sum(source.shape[1] for source in sources)
    limit = plan.rows_within(BUDGET * cores, columns) if rows is None else rows
    layers = [_layer(source, plan, min(limit, source.shape[0])) for source in sources]
    if rows is None:
        note = f"only the first {limit:,} rows, to stay within 20 s; --rows N takes N"
        layers = [_with_note(layer, note) if limit < layer.rows_total else layer for layer in layers]
    work = sum(plan.seconds(*layer.input.shape) for layer in layers)
    processes = cores if work > WORTH_PROCESSES else 1
    return Job(layers, plan, processes, work / processes)


def _with_note(layer: Layer, note: str) -> Layer:
    return replace(layer, notes=(*layer.notes, note))


def _layer(source: Source, plan: Plan, rows: int) -> Layer:
    total, n2 = source.shape
    arrays, notes = dict(source.arrays), list(source.notes)
    for key in ("input", "grad_output"):
        if key in arrays:
            arrays[key] = arrays[key].reshape(total, n2)[:rows]
    if plan.rms and arrays.pop("bias", None) is not None:
        notes.append("bias: not used, RMSNorm has none")
    for key, (fill, said) in _filled_in(rows, n2).items():
        if key not in arrays and not (plan.rms and key == "bias"):
            arrays[key] = fill()
            notes.append(f"{key}: {said}")
    eps = float(np.reshape(arrays.pop("eps"), -1)[0])
    rounded = {key: _rounded(key, arrays[key], plan.dtype) for key in ARRAYS if key in arrays}
    if arrays["input"].dtype != FLOATS[plan.dtype]:
        notes.append(f"input: {arrays['input'].dtype}, rounded to {plan.dtype} (--dtype)")
    return Layer(source.name, bias=rounded.pop("bias", None), eps=eps, rows_total=total, notes=tuple(notes), **rounded)


def _filled_in(rows: int, n2: int) -> dict[str, tuple[Callable[[], Any], str]]:
    """What stands in for an array that is not given, and how that is said."""
    return {
        "weight": (lambda: np.ones(n2), "none given, 1 taken"),
        "bias": (lambda: np.zeros(n2), "none given, 0 taken"),
        "grad_output": (
            lambda: np.random.default_rng(SEED).standard_normal((rows, n2)),
            f"none given, drawn at random (standard normal, seed {SEED})",
        ),
        "eps": (lambda: DEFAULT_EPS, f"none given, {DEFAULT_EPS:g} taken"),
    }


def _rounded(key: str, array: np.ndarray, dtype: str) -> np.ndarray:
    """A contiguous copy in a dtype. An error cannot be measured against NaN or infinity, so neither may be in it."""
    odd = ~np.isfinite(array)
    if odd.any():
        first = tuple(int(i) for i in np.argwhere(odd)[0])
        raise InputError(f"{key} has {odd.sum():,} NaN or infinite values, the first at {first}; compare needs numbers")
    with np.errstate(over="ignore"):
        rounded = np.ascontiguousarray(array).astype(FLOATS[dtype])
    lost = int((~np.isfinite(rounded.astype(np.float64))).sum())
    if lost:
        raise InputError(f"{key} has {lost:,} values too large for {dtype}; choose a wider --dtype")
    return rounded


# ---- what comes out --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Error:
    """How far one array is from the truth.

    Attributes:
        relative: norm of the error over norm of the truth, both over the whole array.
        largest: largest |kernel - truth|.
        bound_ratio: largest |kernel - truth| / bound; above 1 the kernel, or the bound, is wrong.
        not_finite: how many values are NaN or infinite where the truth is a number.
        unbounded: how many values have an infinite bound, where nothing can be said in advance.
        size: how many values there are.
    """

    relative: float
    largest: float
    bound_ratio: float
    not_finite: int
    unbounded: int
    size: int


def measure(got: np.ndarray, want: np.ndarray, bound: np.ndarray) -> Error:
    """The `Error` of a kernel's result, where the truth is a number; its bound_ratio sees the other places too.

    >>> measure(np.float32([3.0, 4.5]), np.array([3.0, 4.0]), np.array([1.0, 1.0]))
    Error(relative=0.1, largest=0.5, bound_ratio=0.5, not_finite=0, unbounded=0, size=2)
    """
    known = np.isfinite(want)
    held, right = got.astype(np.float64)[known], want[known]
    with np.errstate(all="ignore"):
        off = np.abs(held - right)
        scale = np.abs(right).max(initial=0.0) or 1.0  # so that no square overflows
        norm, of = float(np.linalg.norm(off / scale)), float(np.linalg.norm(right / scale))
    relative = norm / of if of else (np.inf if norm > 0 else norm)
    return Error(
        relative=relative,
        largest=float(off.max(initial=0.0)),
        bound_ratio=oracle.ratio(got, want, bound),
        not_finite=int((~np.isfinite(held)).sum()),
        unbounded=int(np.isinf(bound).sum()),
        size=want.size,
    )


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
        """The gradients there are, by name."""
        return {name: getattr(self, name) for name in GRADIENTS if getattr(self, name) is not None}


@dataclass(frozen=True)
class Verdict:
    """`kind`: "as_good", "worse", "not_finite" or "bound_exceeded"; `sentence` says it in words and numbers."""

    kind: str
    sentence: str


@dataclass(frozen=True)
class LayerReport:
    """One layer's numbers.

    `channels_at_risk`: columns of grad_input whose largest recompute bound exceeds AT_RISK times their largest
    saved-input bound; `largest_gamma_at_risk`: the largest |weight| among them, None where there are none.
    """

    name: str
    rows: int
    rows_total: int
    columns: int
    eps: float
    output: Error
    saved_input: Backward
    recomputed: Backward
    smallest_gamma: float
    channels_at_risk: int
    largest_gamma_at_risk: float | None
    verdict: Verdict
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """The whole answer. `seconds` is wall-clock time, imports not counted."""

    plan: Plan
    layers: list[LayerReport]
    seconds: float

    @property
    def within_bounds(self) -> bool:
        """Is every error within its bound?"""
        return all(layer.verdict.kind != "bound_exceeded" for layer in self.layers)


# ---- the three passes over one layer ---------------------------------------------------------------------------------


class Forward(NamedTuple):
    """What the forward left for the backward, and how far it is off."""

    output: np.ndarray  # (n1, n2)
    mean: np.ndarray | None  # (n1,); None for RMSNorm
    invvar: np.ndarray  # (n1,)
    bound: oracle.NormResult
    error: Error


class Pass(NamedTuple):
    """One backward: its numbers, and the largest grad_input bound of each column, (n2,)."""

    backward: Backward
    column_bounds: np.ndarray


@contextmanager
def _world(plan: Plan) -> Iterator[None]:
    """The plan's engine, without the warning that the simulator is slow: `Job.seconds` has said so already."""
    with engine.using(plan.engine), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the simulator takes about", category=UserWarning)
        yield


def run_forward(layer: Layer, plan: Plan) -> Forward:
    """The forward through the kernels, measured."""
    x, n2, weight, bias, eps = layer.input, layer.input.shape[1], layer.weight, layer.bias, layer.eps
    arithmetic = plan.arithmetic("forward", *x.shape)
    mean = None
    with _world(plan):
        if plan.rms:
            output, invvar = ops.rms_norm_forward(x, n2, weight, eps, step=plan.forward)
        else:
            output, mean, invvar = ops.layer_norm_forward(x, n2, weight, bias, eps, step=plan.forward)
    if plan.rms:
        want = oracle.rms_norm(x, n2, weight, eps)
        bound = oracle.rms_norm_bound(x, n2, weight, eps, arithmetic)
    else:
        want = oracle.layer_norm(x, n2, weight, bias, eps)
        bound = oracle.layer_norm_bound(x, n2, weight, bias, eps, arithmetic)
    return Forward(output, mean, invvar, bound, measure(output, want.output, bound.output))


def run_backward(layer: Layer, plan: Plan, forward: Forward, memory_efficient: bool) -> Pass:
    """One backward through the kernels, from the saved input or from the forward's own output, measured."""
    saved = forward.output if memory_efficient else layer.input
    got = _gradients(layer, plan, forward, saved, memory_efficient)
    want, bound = _truth(layer, plan, forward, memory_efficient)
    grad_input, grad_weight, grad_bias = (
        None if array is None or allowed is None or truth is None else measure(array, truth, allowed)
        for array, truth, allowed in zip(got, want, bound, strict=True)
    )
    assert grad_input is not None
    assert grad_weight is not None  # the weight is always given
    statistics = forward.invvar.nbytes
    if forward.mean is not None and not memory_efficient:
        statistics += forward.mean.nbytes
    kept = statistics if memory_efficient else statistics + saved.nbytes
    backward = Backward(grad_input, grad_weight, grad_bias, kept, statistics + saved.nbytes)
    return Pass(backward, bound.grad_input.max(axis=0))


def _gradients(
    layer: Layer, plan: Plan, forward: Forward, saved: np.ndarray, memory_efficient: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    dy, n2, weight, bias, eps = layer.grad_output, saved.shape[1], layer.weight, layer.bias, layer.eps
    mean, invvar, step = forward.mean, forward.invvar, plan.backward
    with _world(plan):
        if plan.rms:
            return *ops.rms_norm_backward(dy, saved, invvar, n2, weight, eps, memory_efficient, step=step), None
        return ops.layer_norm_backward(dy, saved, mean, invvar, n2, weight, bias, eps, memory_efficient, step=step)


def _truth(
    layer: Layer, plan: Plan, forward: Forward, memory_efficient: bool
) -> tuple[oracle.NormGradients, oracle.NormGradients]:
    """The float64 gradients, and the bounds of a kernel that was handed this forward's statistics and output."""
    dy, x, n2 = layer.grad_output, layer.input, layer.input.shape[1]
    weight, bias, eps = layer.weight, layer.bias, layer.eps
    arithmetic = plan.arithmetic("backward", *x.shape)
    if plan.rms:
        return oracle.rms_norm_backward(dy, x, n2, weight, eps), oracle.rms_norm_backward_bound(
            dy, x, n2, weight, eps, arithmetic, memory_efficient=memory_efficient,
            invvar_error=forward.bound.invvar, output_error=forward.bound.output,
        )  # fmt: skip
    return oracle.layer_norm_backward(dy, x, n2, weight, bias, eps), oracle.layer_norm_backward_bound(
        dy, x, n2, weight, bias, eps, arithmetic, memory_efficient=memory_efficient,
        mean_error=forward.bound.mean, invvar_error=forward.bound.invvar, output_error=forward.bound.output,
    )  # fmt: skip


def summarise(layer: Layer, plan: Plan, forward: Forward, saved: Pass, recomputed: Pass) -> LayerReport:
    """One layer's passes, as its report."""
    with np.errstate(all="ignore"):
        at_risk = recomputed.column_bounds > AT_RISK * saved.column_bounds
    gamma = np.abs(layer.weight.astype(np.float64))
    channels = int(at_risk.sum())
    largest = float(gamma[at_risk].max()) if channels else None
    reason = f"no single weight is to blame, but the output's rounding to {plan.dtype}"
    if largest is not None:
        limit = f"|gamma| up to {scientific(largest)}" if largest else "gamma = 0"
        reason = f"{channels} of {gamma.size} weights are too small to divide by ({limit})"
    verdict = judge(forward.error, saved.backward, recomputed.backward, oracle.unit_roundoff(plan.dtype), reason)
    rows, columns = layer.input.shape
    return LayerReport(
        name=layer.name,
        rows=rows,
        rows_total=layer.rows_total,
        columns=columns,
        eps=layer.eps,
        output=forward.error,
        saved_input=saved.backward,
        recomputed=recomputed.backward,
        smallest_gamma=float(gamma.min()),
        channels_at_risk=channels,
        largest_gamma_at_risk=largest,
        verdict=verdict,
        notes=layer.notes,
    )


# ---- the verdict -----------------------------------------------------------------------------------------------------


def judge(output: Error, saved: Backward, recomputed: Backward, roundoff: float, reason: str) -> Verdict:
    """Weigh the two paths against each other, and everything against its bound.

    Args:
        output: the forward's error.
        saved, recomputed: the two backwards'.
        roundoff: unit roundoff of the dtype; errors below it are not told apart.
        reason: why recomputing may be worse, to be quoted if it is.
    """
    weighed = _not_finite(saved, recomputed) or _weigh(saved, recomputed, roundoff, reason)
    broken = [
        f"{name} ({path}) is off by {error.bound_ratio:.3g} times its bound"
        for path, errors in (
            ("forward", {"output": output}),
            ("saved input", saved.gradients),
            ("recomputed", recomputed.gradients),
        )
        for name, error in errors.items()
        if not error.bound_ratio <= 1
    ]
    if broken:
        return Verdict(
            "bound_exceeded",
            f"BOUND EXCEEDED: {'; '.join(broken)}. A kernel or a bound is wrong. Besides, {weighed.sentence}",
        )
    return weighed


def _not_finite(saved: Backward, recomputed: Backward) -> Verdict | None:
    found = [
        f"{path} gives NaN or infinity in {error.not_finite:,} of {error.size:,} values of {name}"
        for path, backward in (("recomputing", recomputed), ("saving the input", saved))
        for name, error in backward.gradients.items()
        if error.not_finite
    ]
    return Verdict("not_finite", "; ".join(found)) if found else None


def _weigh(saved: Backward, recomputed: Backward, roundoff: float, reason: str) -> Verdict:
    factors = {name: _factor(recomputed.gradients[name], error, roundoff) for name, error in saved.gradients.items()}
    worst = max(factors, key=lambda name: factors[name])
    if factors[worst] <= AS_GOOD:
        return Verdict("as_good", "recomputing is as good as saving")
    here, there = recomputed.gradients[worst], saved.gradients[worst]
    if np.isinf(here.relative):
        here_off, there_off = scientific(here.largest), scientific(there.largest)
        return Verdict(
            "worse", f"where 0 is right, recomputing gives {here_off} in {worst}, saving {there_off}: {reason}"
        )
    here_off, there_off = scientific(here.relative), scientific(there.relative)
    return Verdict("worse", f"recomputing is off by {here_off} in {worst}, saving by {there_off}: {reason}")


def _factor(recomputed: Error, saved: Error, roundoff: float) -> float:
    """How many times worse; by the largest error where the truth is 0 and both are wrong."""
    if np.isinf(saved.relative):
        return recomputed.largest / saved.largest
    return recomputed.relative / max(saved.relative, roundoff)


def scientific(value: float) -> str:
    """Two digits and an exponent, short.

    >>> scientific(0.02497), scientific(1), scientific(0), scientific(float("nan"))
    ('2.5e-2', '1.0', '0', 'NaN')
    """
    if np.isnan(value):
        return "NaN"
    if value == 0 or np.isinf(value):
        return f"{value:g}"
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits}e{int(exponent)}" if int(exponent) else digits


# ---- running it ------------------------------------------------------------------------------------------------------


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run(job: Job, advance: Callable[[], None] = lambda: None) -> Report:
    """Run every layer's three passes; the numbers do not depend on how many processes do it.

    `advance` is called after each pass, `3 * len(job.layers)` times.
    """
    began = time.perf_counter()
    layers, plan = job.layers, job.plan
    with _workers(job.processes) as execute:
        forwards = execute(run_forward, [(layer, plan) for layer in layers], advance)
        backwards = execute(
            run_backward,
            [
                (layer, plan, forward, path)
                for layer, forward in zip(layers, forwards, strict=True)
                for path in (False, True)
            ],
            advance,
        )
    reports = [
        summarise(layer, plan, forward, saved, recomputed)
        for layer, forward, saved, recomputed in zip(layers, forwards, backwards[::2], backwards[1::2], strict=True)
    ]
    return Report(plan, reports, time.perf_counter() - began)


Execute = Callable[[Callable[..., Any], list[tuple], Callable[[], None]], list]


@contextmanager
def _workers(processes: int) -> Iterator[Execute]:
    """A function that calls another on every tuple of arguments, maybe in processes, and gives the results in order."""
    if processes == 1:
        yield _one_after_another
        return
    # "spawn": a forked copy of a process that has threads (the progress bar's) may hang
    with ProcessPoolExecutor(processes, get_context("spawn"), initializer=_ignore_interrupt) as pool:

        def side_by_side(function: Callable[..., Any], tasks: list[tuple], advance: Callable[[], None]) -> list:
            futures = [pool.submit(function, *task) for task in tasks]
            for _ in as_completed(futures):
                advance()
            return [future.result() for future in futures]

        try:
            yield side_by_side
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _one_after_another(function: Callable[..., Any], tasks: list[tuple], advance: Callable[[], None]) -> list:
    results = []
    for task in tasks:
        results.append(function(*task))
        advance()
    return results


def _ignore_interrupt() -> None:
    """Ctrl-C is the parent's to answer; a worker ends when the parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
