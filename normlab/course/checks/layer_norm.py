"""Exercise: LayerNorm's forward. Solved in `normlab.kernels.forward.step_3_apex`."""

from normlab.course.data import norm_case
from normlab.course.exercise import ANYWHERE, Case, Drawn, Exercise, Launch, Size
from normlab.course.pictures import Picture, writers


def _make(drawn: Drawn) -> Case:
    case = norm_case(drawn)
    names = ("x", "weight", "bias", case.eps, "output", "means", "invvars")
    return Case([Launch("layer_norm", drawn["rows"], 64, names)], case.arrays, case.want)


EXERCISE = Exercise(
    name="layer_norm",
    title="LayerNorm, forward",
    make=_make,
    sizes={"rows": Size(1, 2, (3,)), "columns": Size(1, 130, (1, 2, 63, 64, 65, 300), beyond=800)},
    example={"rows": 2, "columns": 256},
    hints=(
        "invvar = float32(1) / math.sqrt(variance + eps): eps belongs under the root.",
        "The walk is the one of the last exercise: from cuda.threadIdx.x to x.shape[1] in steps of cuda.blockDim.x.",
        "means[row] and invvars[row] are written by one thread: if cuda.threadIdx.x == 0.",
    ),
    costs=ANYWHERE,
    tutorial=6,
    picture=Picture(
        writers("output"),
        "neighbouring threads write neighbouring columns; a colour is a block, which has one row",
    ),
)
