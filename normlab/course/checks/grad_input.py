"""Exercise: LayerNorm's gradient of the input. Solved in `normlab.stages.gradient`."""

import numpy as np

from normlab import oracle
from normlab.course.data import EPS, arithmetic, nothing, values
from normlab.course.exercise import Answer, Case, Drawn, Exercise, Launch, Size


def _make(drawn: Drawn) -> Case:
    rng, rows, columns = drawn.rng, drawn["rows"], drawn["columns"]
    x, grad_output = values(drawn.kind, rng, rows, columns), values("normal", rng, rows, columns)
    weight = values("normal", rng, columns)
    truth = oracle.layer_norm(x, columns, eps=EPS)
    given = grad_output, x, columns, weight, None, EPS
    bound = oracle.layer_norm_backward_bound(*given, arithmetic(columns)).grad_input
    return Case(
        launches=[Launch("grad_input", rows, 64, ("grad_output", "x", "means", "invvars", "weight", "result"))],
        arrays={
            "grad_output": grad_output,
            "x": x,
            "means": np.float32(truth.mean),
            "invvars": np.float32(truth.invvar),
            "weight": weight,
            "result": nothing(rows, columns),
        },
        want={"result": Answer(oracle.layer_norm_backward(*given).grad_input, bound)},
    )


EXERCISE = Exercise(
    name="grad_input",
    title="LayerNorm, backward: the gradient of the input",
    make=_make,
    sizes={"rows": Size(1, 2), "columns": Size(1, 130, (1, 2, 63, 64, 65, 300))},
    hints=(
        "First walk: sum_g += g and sum_gx += g * x̂, with g = grad_output[row, column] * weight[column].",
        "sum_g, sum_gx = block_sums(warp_sum_butterfly(sum_g), warp_sum_butterfly(sum_gx), buffer), outside of the loop.",
        "Divide both sums by float32(x.shape[1]); the second walk stores (g - mean_g - x̂ * mean_gx) * invvar.",
    ),
)
