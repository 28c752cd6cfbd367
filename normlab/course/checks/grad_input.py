"""Exercise: LayerNorm's gradient of the input. Solved in `normlab.stages.gradient`."""

from normlab.course.data import arithmetic, backward_case, nothing
from normlab.course.exercise import ANYWHERE, Case, Drawn, Exercise, Launch, Size


def _make(drawn: Drawn) -> Case:
    rows, columns = drawn["rows"], drawn["columns"]
    arrays, answer = backward_case(drawn, "grad_input", arithmetic(columns))
    return Case(
        launches=[Launch("grad_input", rows, 64, ("grad_output", "x", "means", "invvars", "weight", "result"))],
        arrays=arrays | {"result": nothing(rows, columns)},
        want={"result": answer},
    )


EXERCISE = Exercise(
    name="grad_input",
    title="LayerNorm, backward: the gradient of the input",
    make=_make,
    sizes={"rows": Size(1, 2, (3,)), "columns": Size(1, 130, (1, 2, 63, 64, 65, 300))},
    example={"rows": 1, "columns": 256},
    hints=(
        "First walk: sum_g += g and sum_gx += g * x̂, with g = grad_output[row, column] * weight[column].",
        "Then all threads: sum_g, sum_gx = block_sums(warp_sum_butterfly(sum_g), warp_sum_butterfly(sum_gx), buffer).",
        "Divide both sums by float32(x.shape[1]); the second walk stores (g - mean_g - x̂ * mean_gx) * invvar.",
    ),
    costs=ANYWHERE,
)
