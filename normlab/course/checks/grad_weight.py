"""Exercise: LayerNorm's gradient of the weight in two kernels. apex's way is in `normlab.kernels.backward`."""

import numpy as np

from normlab.course.data import arithmetic, backward_case, gradient, nothing
from normlab.course.exercise import Answer, Case, Drawn, Exercise, Launch, Size
from normlab.course.pictures import Picture, readers


def _make(drawn: Drawn) -> Case:
    rows, columns, parts = drawn["rows"], drawn["columns"], drawn["parts"]
    how = arithmetic(max(rows, columns) + parts)  # a column's sum has up to rows + parts terms, a row's has columns
    arrays, answer = backward_case(drawn, "grad_weight", how)
    # Each part's sums are checked, too. Otherwise one part could do the work of all.
    of_parts = [gradient(arrays, "grad_weight", how, slice(part, None, parts)) for part in range(parts)]
    del arrays["weight"]  # which its own gradient does not depend on
    blocks = -(-columns // 32)
    return Case(
        launches=[
            Launch("partial_sums", (blocks, parts), 32, ("grad_output", "x", "means", "invvars", "partial")),
            Launch("final_sums", blocks, 32, ("partial", "grad_weight")),
        ],
        arrays=arrays | {"partial": nothing(parts, columns), "grad_weight": nothing(columns)},
        want={"partial": Answer(*map(np.array, zip(*of_parts, strict=True))), "grad_weight": answer},
    )


EXERCISE = Exercise(
    name="grad_weight",
    title="LayerNorm, backward: the gradient of the weight",
    make=_make,
    sizes={
        "rows": Size(1, 12, (1, 2), beyond=100),
        "columns": Size(1, 40, (1, 33), beyond=200),
        "parts": Size(1, 8, (1, 5), beyond=20),
    },
    # Many rows, and many parts that all have rows. Three columns: in a single one x̂ is 0, and no lost row would show.
    also=(({"rows": 140, "columns": 3}, "normal"), ({"rows": 70, "columns": 3, "parts": 35}, "normal")),
    example={"rows": 32, "columns": 64, "parts": 4},
    hints=(
        "Both kernels: guard the column first, then a total that starts at float32(0).",
        "range(part, rows, parts) are the rows of a part. A part without rows has to leave a 0, not nothing.",
        "total += grad_output[row, column] * ((x[row, column] - means[row]) * invvars[row]); partial[part, column] = "
        "total. The second kernel adds partial[part, column] over all parts.",
    ),
    tutorial=8,
    picture=Picture(
        readers("x"),
        "a colour is a block: its part of the rows lies apart, and its threads stand beside each other in a row",
        lambda: _make(Drawn({"rows": 12, "columns": 32, "parts": 4}, "normal", 0)),
    ),
)
