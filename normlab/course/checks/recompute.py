"""Exercise: x̂ from the output, with the weight clamped. Solved in `normlab.stages.recompute`."""

from dataclasses import replace

import numpy as np

from normlab.course.data import nothing, values
from normlab.course.exercise import Answer, Case, Drawn, Exercise, Launch, Size
from normlab.course.pictures import Line, Picture, Seen, results
from normlab.oracle import unit_roundoff

EPSILONS = np.array([0.01, 0.001, 0.1], np.float32)
TREACHEROUS = np.array([0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 100.0, -100.0, 30_000.0], np.float32)  # in units of eps


def _make(drawn: Drawn) -> Case:
    rng, rows, columns = drawn.rng, drawn["rows"], drawn["columns"]
    xhat = values("normal", rng, rows, columns)
    eps = rng.choice(EPSILONS)
    weight = values("normal", rng, columns) if drawn.kind == "normal" else np.resize(TREACHEROUS * eps, columns)
    bias = values("normal", rng, columns)
    y = xhat * weight + bias
    clamped = np.where(weight >= 0, np.maximum(weight, eps), np.minimum(weight, -eps))
    want = (y.astype(np.float64) - bias) / clamped
    return Case(
        launches=[
            Launch("recompute", -(-columns // 32), 32, ("y", "weight", "bias", eps, "clamped", "xhat")),
        ],
        arrays={"y": y, "weight": weight, "bias": bias, "clamped": nothing(columns), "xhat": nothing(rows, columns)},
        # the subtraction and the division round once each, a product with 1 / gamma once more
        want={"clamped": Answer(clamped, 0.0), "xhat": Answer(want, 3.001 * unit_roundoff("float32") * abs(want))},
    )


def _small_weights() -> Case:
    """Return a case with weights around 0."""
    case = _make(Drawn({"rows": 1, "columns": 41}, "normal", 0))
    weight = np.linspace(-0.03, 0.03, 41).astype(np.float32)
    return replace(case, arrays=case.arrays | {"weight": weight})


def _clamped(seen: Seen) -> list[Line]:
    """Return the clamped weights over the weights."""
    weight = seen.arrays["weight"]
    *_, eps, _, _ = seen.case.launches[0].arguments
    right = np.where(weight >= 0, 1, -1) * np.maximum(abs(weight), eps)
    return [Line("clamped", weight, right, seen.arrays["clamped"])]


EXERCISE = Exercise(
    name="recompute",
    title="Back from the output",
    make=_make,
    sizes={"rows": Size(1, 4, (1,), beyond=20), "columns": Size(1, 40, (1, 2, 9, 33), beyond=200)},
    kinds=("treacherous", "normal"),
    example={"rows": 4, "columns": 32},
    hints=(
        "Two cases: gamma >= 0, and the rest. max and min take two numbers in a kernel, too.",
        "-eps is what a small negative gamma becomes: min(gamma, -eps).",
        "normalised_from_output subtracts beta and divides by what clamp_by_magnitude makes of gamma.",
    ),
    tutorial=9,
    picture=Picture(
        results("What is divided by, over the weight", "weight", _clamped),
        "no weight between -eps and eps is left, and each keeps its sign",
        _small_weights,
    ),
)
