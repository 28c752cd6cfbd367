"""Exercise: x + residual and its RMSNorm in one kernel. Solved in `normlab.kernels.add_norm`."""

from dataclasses import replace

import numpy as np

from normlab import oracle
from normlab.course.data import EPSILONS, arithmetic, nothing, values
from normlab.course.exercise import ANYWHERE, Answer, Case, Drawn, Exercise, Launch, Size
from normlab.course.pictures import Line, Picture, Seen, results


def _make(drawn: Drawn) -> Case:
    rng, rows, columns = drawn.rng, drawn["rows"], drawn["columns"]
    dtype = np.float16 if drawn["half"] else np.float32
    x = values(drawn.kind, rng, rows, columns).astype(np.float16)
    residual = values("normal", rng, rows, columns).astype(dtype)
    weight = values("normal", rng, columns)
    eps = rng.choice(EPSILONS)
    truth = oracle.add_rms_norm(x, residual, weight, float(eps))
    bound = oracle.add_rms_norm_bound(truth.new_residual, weight, float(eps), arithmetic(columns))
    sums = "residual" if drawn["in_place"] else "new_residual"
    arrays = {"x": x, "residual": residual, "weight": weight}
    return Case(
        launches=[
            Launch(
                "add_rms_norm",
                min(rows, drawn["blocks"]),
                64,
                ("x", "residual", "weight", np.float32(eps), sums, "output"),
            )
        ],
        arrays=arrays | {sums: arrays.get(sums, np.empty_like(residual)), "output": nothing(rows, columns)},
        want={
            sums: Answer(truth.new_residual.astype(np.float64), 0.0),
            "output": Answer(truth.output, np.asarray(bound.output)),
        },
        in_place=("residual",) if drawn["in_place"] else (),
    )


def _one_row() -> Case:
    """Return a case of one row whose weights are 1."""
    case = _make(Drawn({"half": 0, "in_place": 0, "blocks": 1, "rows": 1, "columns": 24}, "normal", 0))
    output, bound = case.want["output"]
    xhat = np.asarray(output) / case.arrays["weight"]
    return replace(
        case,
        arrays=case.arrays | {"weight": np.ones(24, np.float32)},
        want=case.want | {"output": Answer(xhat, bound)},
    )


def _both(seen: Seen) -> list[Line]:
    """Return both results and x over the columns."""
    columns, want = np.arange(24), seen.case.want
    names = "new_residual", "output"
    lines = [Line(name, columns, np.asarray(want[name].value)[0], seen.arrays[name][0]) for name in names]
    return [*lines, Line("x", columns, seen.arrays["x"][0])]


EXERCISE = Exercise(
    name="add_norm",
    title="Add, then normalise, in one kernel",
    make=_make,
    sizes={
        "half": Size(0, 1, (1,)),
        "in_place": Size(0, 1, (1,)),
        "blocks": Size(1, 4),
        "rows": Size(1, 4, (4,), beyond=8),
        "columns": Size(1, 100, (2, 65), beyond=800),
    },
    example={"half": 1, "in_place": 0, "blocks": 2, "rows": 2, "columns": 256},
    hints=(
        "Two walks along the row, with the sum over the block between them. The first one stores the sums.",
        "After new_residual[row, column] is stored, read it back: float32(new_residual[row, column]) is the number to "
        "be squared.",
        "In the second walk load new_residual, not x and residual: the residual may have been overwritten, and the sum "
        "may have been rounded.",
    ),
    costs=ANYWHERE,
    tutorial=17,
    picture=Picture(
        results("A row of the stream, and its norm", "column", _both),
        "the stream goes on as it is; the output is the stream divided by its root mean square, so it is flatter here",
        _one_row,
    ),
)
