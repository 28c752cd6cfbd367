"""Exercise: both norms by a flag. Solved in `normlab.kernels.forward.step_3_apex`."""

import numpy as np

from normlab.course.data import EXACT, norm_case
from normlab.course.exercise import ANYWHERE, Case, Drawn, Exercise, Launch, Size
from normlab.course.pictures import Line, Picture, Seen, results


def _make(drawn: Drawn) -> Case:
    case = norm_case(drawn, rms=bool(drawn["rms"]))
    names = ("x", "weight", "bias", case.eps, bool(drawn["rms"]), "output")
    want = {"output": case.want["output"]}
    arrays = {name: case.arrays[name] for name in ("x", "weight", "bias", "output")}
    return Case([Launch("norm", drawn["rows"], 64, names)], arrays, want)


def _both_norms() -> Case:
    """Return a case of one row that is far from 0, without the flag and with it."""
    cases = [_make(Drawn({"rms": rms, "rows": 1, "columns": 40}, "counting", 0)) for rms in (0, 1)]
    launches, arrays, want = [], dict(cases[0].arrays), {}
    for case, name in zip(cases, ("LayerNorm", "RMSNorm"), strict=True):
        (launch,) = case.launches
        launches.append(launch._replace(arguments=(*launch.arguments[:-1], name)))
        arrays[name], want[name] = case.arrays["output"], case.want["output"]
    return Case(launches, arrays, want, scratch=("output",))


def _both(seen: Seen) -> list[Line]:
    """Return both norms' outputs over the columns."""
    names = ("LayerNorm", "RMSNorm")
    columns = np.arange(40)
    return [Line(one, columns, np.asarray(seen.case.want[one].value)[0], seen.arrays[one][0]) for one in names]


EXERCISE = Exercise(
    name="rms_norm",
    title="RMSNorm, by a flag",
    make=_make,
    sizes={"rms": Size(0, 1, (0, 1)), "rows": Size(1, 2, (3,)), "columns": Size(1, 130, (1, 2, 65, 300), beyond=800)},
    also=(({"rms": 0, "columns": EXACT}, "offset"),),
    example={"rms": 1, "rows": 1, "columns": 256},
    hints=(
        "if rms: …, else: …: each branch finds what stands under the root; the line with the root can follow both.",
        "row_mean_square(x, row, buffer) is one number; mean, variance = row_moments(x, row, buffer) are two.",
        "RMSNorm's mean stays the 0 that is there already, and value += bias[column] only if not rms.",
    ),
    costs=ANYWHERE,
    tutorial=6,
    picture=Picture(
        results("One row by both norms", "column", _both),
        "RMSNorm leaves the row's mean where it is, LayerNorm takes it away",
        _both_norms,
    ),
)
