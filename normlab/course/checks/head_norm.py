"""Exercise: RMSNorm of each head of a fused array, with gamma = 1 + w. In the library: `head_rms_norm_forward`."""

import numpy as np

from normlab import oracle
from normlab.course.data import EPSILONS, arithmetic, nothing, values
from normlab.course.exercise import ANYWHERE, Answer, Case, Drawn, Exercise, Launch, Size
from normlab.course.pictures import Picture, writers
from normlab.oracle import unit_roundoff
from normlab.oracle.add_norm import gamma

U = unit_roundoff("float32")
WARPS = 4  # per block
SMALL, LARGEST = 0.001, 0.5  # weights of one kind are small, and no weight is larger


def _make(drawn: Drawn) -> Case:
    rng, tokens, heads, columns = drawn.rng, drawn["tokens"], drawn["heads"], drawn["columns"]
    others = drawn["others"] * columns  # keys and values
    fused = values("offset" if drawn.kind == "offset" else "normal", rng, tokens, heads * columns + others)
    if drawn.kind == "counting":
        fused = values("counting", rng, *fused.shape)
    scale = LARGEST if drawn.kind == "normal" else SMALL
    weight = rng.uniform(-scale, scale, columns).astype(np.float16)
    eps = float(rng.choice(EPSILONS))
    return Case(
        launches=[
            Launch(
                "head_norm",
                -(-tokens * heads // WARPS),
                32 * WARPS,
                ("fused", "weight", np.float32(eps), "output"),
            )
        ],
        arrays={"fused": fused, "weight": weight, "output": nothing(tokens, heads, columns)},
        want={"output": _normalised(fused[:, : heads * columns].reshape(tokens, heads, columns), weight, eps)},
    )


def _normalised(x: np.ndarray, weight: np.ndarray, eps: float) -> Answer:
    """Return x̂ (1 + w) with a bound that holds for x̂ + x̂ w, too.

    The oracle's bound is that of γ = 1 + w, rounded once. A γ that is not rounded is off by u |γ|. In x̂ + x̂ w the
    product is off by u |x̂ w|, which is at most u |x̂ γ| as |w| is at most 1/2, and the sum by u |x̂ γ|.
    """
    columns, scale = x.shape[-1], gamma(weight, 1.0)
    truth = oracle.rms_norm(x, columns, scale, eps).output
    bound = oracle.rms_norm_bound(x, columns, scale, eps, arithmetic(columns)).output
    return Answer(truth, bound + 3.001 * U * abs(truth))


EXERCISE = Exercise(
    name="head_norm",
    title="1 + w, for each head",
    make=_make,
    sizes={
        "tokens": Size(1, 3, (3,), beyond=16),
        "heads": Size(1, 4, (4,), beyond=10),
        "others": Size(0, 3, (0,)),
        "columns": Size(1, 100, (31, 33, 64), beyond=300),
    },
    example={"tokens": 2, "heads": 3, "others": 2, "columns": 64},
    hints=(
        "Warp number w has token w // heads and head w % heads, if w < tokens * heads.",
        "The head's first column in fused is head * columns. Lane l takes columns l, l + 32, and so on.",
        "gamma = float32(1) + weight[column]; and the mean square divides by columns, not by 32. All lanes of the warp "
        "call warp_sum_butterfly, also those without a column.",
    ),
    costs=ANYWHERE,
    tutorial=17,
    picture=Picture(
        writers("output"),
        "32 neighbours of a head are written by the 32 lanes of one warp; a block's colour covers four heads",
        lambda: _make(Drawn({"tokens": 2, "heads": 3, "others": 2, "columns": 40}, "counting", 0)),
    ),
)
