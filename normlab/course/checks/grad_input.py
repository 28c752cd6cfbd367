"""Exercise: LayerNorm's gradient of the input. Solved in `normlab.stages.gradient`."""

import numpy as np

from normlab.course.data import arithmetic, backward_case, nothing
from normlab.course.exercise import ANYWHERE, Case, Drawn, Exercise, Launch, Size
from normlab.course.pictures import Line, Picture, Seen, results


def _make(drawn: Drawn) -> Case:
    rows, columns = drawn["rows"], drawn["columns"]
    arrays, answer = backward_case(drawn, "grad_input", arithmetic(columns))
    return Case(
        launches=[Launch("grad_input", rows, 64, ("grad_output", "x", "means", "invvars", "weight", "result"))],
        arrays=arrays | {"result": nothing(rows, columns)},
        want={"result": answer},
    )


def _gradient(seen: Seen) -> list[Line]:
    """Return g and the gradient over the columns."""
    g = seen.arrays["grad_output"][0] * seen.arrays["weight"]
    columns, right = np.arange(len(g)), np.asarray(seen.case.want["result"].value)[0]
    return [Line("grad_input", columns, right, seen.arrays["result"][0]), Line("g, as given", columns, g)]


EXERCISE = Exercise(
    name="grad_input",
    title="LayerNorm, backward: the gradient of the input",
    make=_make,
    sizes={"rows": Size(1, 2, (3,)), "columns": Size(1, 130, (1, 2, 63, 64, 65, 300), beyond=800)},
    example={"rows": 1, "columns": 256},
    hints=(
        "First walk: sum_g += g and sum_gx += g * x̂, with g = grad_output[row, column] * weight[column].",
        "Then all threads: sum_g, sum_gx = block_sums(warp_sum_butterfly(sum_g), warp_sum_butterfly(sum_gx), buffer).",
        "Divide both sums by float32(x.shape[1]); the second walk stores (g - mean_g - x̂ * mean_gx) * invvar.",
    ),
    costs=ANYWHERE,
    tutorial=7,
    picture=Picture(
        results("The gradient of a row of x", "column", _gradient),
        "the gradient of a row adds up to 0: both means are taken out of g",
        lambda: _make(Drawn({"rows": 1, "columns": 16}, "normal", 0)),
    ),
)
