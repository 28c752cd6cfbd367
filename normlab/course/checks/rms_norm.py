"""Exercise: both norms by a flag. Solved in `normlab.kernels.forward.step_3_apex`."""

from normlab.course.data import norm_case
from normlab.course.exercise import ANYWHERE, Case, Drawn, Exercise, Launch, Size


def _make(drawn: Drawn) -> Case:
    case = norm_case(drawn, rms=bool(drawn["rms"]))
    names = ("x", "weight", "bias", case.eps, bool(drawn["rms"]), "output")
    want = {"output": case.want["output"]}
    arrays = {name: case.arrays[name] for name in ("x", "weight", "bias", "output")}
    return Case([Launch("norm", drawn["rows"], 64, names)], arrays, want)


EXERCISE = Exercise(
    name="rms_norm",
    title="RMSNorm, by a flag",
    make=_make,
    sizes={"rms": Size(0, 1, (0, 1)), "rows": Size(1, 2, (3,)), "columns": Size(1, 130, (1, 2, 65, 300))},
    example={"rms": 1, "rows": 1, "columns": 256},
    hints=(
        "if rms: …, else: …: each branch finds what stands under the root; the line with the root can follow both.",
        "row_mean_square(x, row, buffer) is one number; mean, variance = row_moments(x, row, buffer) are two.",
        "RMSNorm's mean stays the 0 that is there already, and value += bias[column] only if not rms.",
    ),
    costs=ANYWHERE,
    picture="sectors",
)
