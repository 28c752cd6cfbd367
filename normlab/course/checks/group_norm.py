"""Exercise: group norm from row moments. The whole family is `normlab.host.family`."""

import numpy as np

from normlab import oracle
from normlab.course.data import EPSILONS, arithmetic, nothing, values
from normlab.course.exercise import ANYWHERE, Answer, Case, Drawn, Exercise, Launch, Size


def _make(drawn: Drawn) -> Case:
    rng, groups, pixels = drawn.rng, drawn["groups"], drawn["pixels"]
    channels = groups * drawn["channels_of_group"]
    rows, columns = drawn["samples"] * groups, drawn["channels_of_group"] * pixels
    x = values(drawn.kind, rng, rows, columns)
    weight, bias = values("normal", rng, 2, channels)
    eps = float(rng.choice(EPSILONS))
    parameters = [np.repeat(part, pixels).reshape(groups, columns) for part in (weight, bias)]
    value, bound = np.empty((2, rows, columns))
    for group in range(groups):  # rows of the same group are a LayerNorm with the group's weights, one for each element
        mine = x[group::groups], columns, parameters[0][group], parameters[1][group], eps
        value[group::groups] = oracle.layer_norm(*mine).output
        bound[group::groups] = oracle.layer_norm_bound(*mine, arithmetic(columns)).output
    names = ("x", "weight", "bias", groups, pixels, np.float32(eps), "output")
    return Case(
        launches=[Launch("group_norm", rows, 64, names)],
        arrays={"x": x, "weight": weight, "bias": bias, "output": nothing(rows, columns)},
        want={"output": Answer(value, bound)},
    )


EXERCISE = Exercise(
    name="group_norm",
    title="Group norm from row moments",
    make=_make,
    sizes={
        "samples": Size(1, 2, (2,)),
        "groups": Size(1, 3, (1, 2)),
        "channels_of_group": Size(1, 4, (1, 2)),
        "pixels": Size(1, 30, (1, 2, 70)),
    },
    example={"samples": 1, "groups": 2, "channels_of_group": 2, "pixels": 64},
    hints=(
        "An element at `column` of a row is in the row's channel number column // pixels.",
        "The row's first channel: its group, which is row % groups, times channels_of_group.",
        "Everything else is LayerNorm, with weight[channel] and bias[channel].",
    ),
    costs=ANYWHERE,
    picture="sectors",
)
