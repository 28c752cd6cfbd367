"""Exercise: group norm from row moments. The whole family is `normlab.host.family`."""

from dataclasses import replace

import numpy as np

from normlab import oracle
from normlab.course.data import (
    EPSILONS,
    EXACT,
    arithmetic,
    centred_answer,
    centred_values,
    mean_is_exact,
    nothing,
    values,
)
from normlab.course.exercise import ANYWHERE, Answer, Case, Drawn, Exercise, Launch, Size
from normlab.course.pictures import Picture, Seen, labels


def _make(drawn: Drawn) -> Case:
    rng, groups, pixels = drawn.rng, drawn["groups"], drawn["pixels"]
    channels = groups * drawn["channels_of_group"]
    rows, columns = drawn["samples"] * groups, drawn["channels_of_group"] * pixels
    x = centred_values(drawn.kind, rng, rows, columns)
    weight, bias = values("normal", rng, 2, channels)
    eps = float(rng.choice(EPSILONS))
    parameters = [np.repeat(part, pixels).reshape(groups, columns) for part in (weight, bias)]
    value, bound = np.empty((2, rows, columns))
    for group in range(groups):  # rows of the same group are a LayerNorm with the group's weights, one for each element
        mine = x[group::groups], columns, parameters[0][group], parameters[1][group], eps
        value[group::groups] = oracle.layer_norm(*mine).output
        bound[group::groups] = oracle.layer_norm_bound(*mine, arithmetic(columns)).output
    answer = Answer(value, bound)
    if mean_is_exact(drawn.kind, columns):
        answer = centred_answer(value, np.tile(parameters[1], (drawn["samples"], 1)))
    names = ("x", "weight", "bias", groups, pixels, np.float32(eps), "output")
    return Case(
        launches=[Launch("group_norm", rows, 64, names)],
        arrays={"x": x, "weight": weight, "bias": bias, "output": nothing(rows, columns)},
        want={"output": answer},
    )


def _numbered() -> Case:
    """Return a case in which a channel's weight is its number, counted from 1, and there is no bias."""
    case = _make(Drawn({"samples": 1, "groups": 2, "channels_of_group": 2, "pixels": 8}, "normal", 0))
    weight = np.arange(1, 5, dtype=np.float32)
    return replace(case, arrays=case.arrays | {"weight": weight, "bias": np.zeros_like(weight)})


def _channels(seen: Seen) -> np.ndarray:
    """Return the channel whose weight each element of the output was multiplied with, as text, "?" if there is none."""
    x, channels = seen.arrays["x"], np.arange(len(seen.arrays["weight"]))
    *_, eps, _ = seen.case.launches[0].arguments
    weights = seen.arrays["output"] / oracle.layer_norm(x, x.shape[1], eps=float(eps)).output
    return np.select([abs(weights - 1 - channel) < 1e-3 for channel in channels], channels.astype(str), "?")


EXERCISE = Exercise(
    name="group_norm",
    title="Group norm from row moments",
    make=_make,
    sizes={
        "samples": Size(1, 2, (2,)),
        "groups": Size(1, 3, (1, 2)),
        "channels_of_group": Size(1, 4, (1, 2)),
        "pixels": Size(1, 30, (1, 2, 70), beyond=200),
    },
    also=(({"channels_of_group": 2, "pixels": EXACT // 2}, "offset"),),
    example={"samples": 1, "groups": 2, "channels_of_group": 2, "pixels": 64},
    hints=(
        "An element at `column` of a row is in the row's channel number column // pixels.",
        "The row's first channel: its group, which is row % groups, times channels_of_group.",
        "Everything else is LayerNorm, with weight[channel] and bias[channel].",
    ),
    costs=ANYWHERE,
    tutorial=11,
    picture=Picture(
        labels(
            "The channel whose weight each element got",
            "rows: the groups of a sample; columns: channels and pixels",
            _channels,
        ),
        "each group has its own two channels, and a channel all of its pixels",
        _numbered,
    ),
)
