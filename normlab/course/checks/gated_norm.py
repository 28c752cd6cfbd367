"""Exercise: an RMSNorm whose output is multiplied by silu of a gate."""

import numpy as np

from normlab import oracle
from normlab.course.data import EPSILONS, arithmetic, nothing, values
from normlab.course.exercise import ANYWHERE, Answer, Case, Drawn, Exercise, Launch, Size
from normlab.course.pictures import Line, Picture, Seen, results
from normlab.oracle import unit_roundoff

U = unit_roundoff("float32")
SMALLEST_NORMAL = 2.0**-126
CLOSED = 80.0  # a gate of -80 has a silu of 1e-33, which is a normal float32
OPEN = 20.0  # silu(20) is 20 in float32; below about 15 it is not yet
FAR = np.array([-1000.0, -90.0, -20.0, -1.0, 0.0, 1.0, 90.0, 1000.0])


def _gate(drawn: Drawn, shape: tuple[int, int]) -> np.ndarray:
    """Return gates around 0, for "normal"; from nearly closed to open, for "offset"; else some that are far from 0."""
    gate = drawn.rng.normal(scale=4, size=shape)
    if drawn.kind == "offset":
        gate = drawn.rng.uniform(-CLOSED, OPEN, shape)
    if drawn.kind == "counting":
        gate = np.resize(FAR, shape)
    return gate.astype(np.float16 if drawn["half"] else np.float32)


def _make(drawn: Drawn) -> Case:
    rng, rows, columns = drawn.rng, drawn["rows"], drawn["columns"]
    x = values(drawn.kind, rng, rows, columns)
    weight = values("normal", rng, columns)
    gate = _gate(drawn, x.shape)
    eps = float(rng.choice(EPSILONS))
    return Case(
        launches=[Launch("gated_rms_norm", rows, 64, ("x", "gate", "weight", np.float32(eps), "output"))],
        arrays={"x": x, "gate": gate, "weight": weight, "output": nothing(rows, columns)},
        want={"output": gated(x, gate, weight, eps)},
    )


def gated(x: np.ndarray, gate: np.ndarray, weight: np.ndarray, eps: float) -> Answer:
    """Return x̂ w silu(z), with a bound for every order of the products.

    silu: a float32 exponential is off by 2 units in the last place (CUDA's guide), at most 4u. It occurs once in
    z / (1 + e) or twice in z e / (1 + e); the addition, the division and a product round once each: 11u. Where the
    exponential is infinite or subnormal, silu is about |z| e^z, and that is off by |z| times a normal number at most.

    The output: the norm's own bound times silu, the norm times silu's error, both errors together, and a rounding of
    the product. An order that multiplies by silu earlier rounds as often. Subnormal results round by more.
    """
    columns, z = x.shape[1], gate.astype(np.float64)
    norm = oracle.rms_norm(x, columns, weight, eps).output
    bound = np.asarray(oracle.rms_norm_bound(x, columns, weight, eps, arithmetic(columns)).output)
    with np.errstate(over="ignore"):
        silu = z / (1 + np.exp(-z))
    error = 11.001 * U * abs(silu) + abs(z) * SMALLEST_NORMAL
    value = norm * silu
    return Answer(value, bound * (abs(silu) + error) + abs(norm) * error + 2 * U * abs(value) + SMALLEST_NORMAL)


def _switch() -> Case:
    """Return a case of one row in which all of x and the weights are 1, and the gate goes from -8 to 8."""
    case = _make(Drawn({"half": 0, "rows": 1, "columns": 65}, "normal", 0))
    x, weight, gate = np.ones((1, 65), np.float32), np.ones(65, np.float32), np.linspace(-8, 8, 65, dtype=np.float32)
    launch = case.launches[0]
    tiny = np.float32(1e-12)  # an eps that changes nothing here
    launches = [launch._replace(arguments=(*launch.arguments[:3], tiny, launch.arguments[4]))]
    arrays = {"x": x, "gate": gate[None], "weight": weight, "output": case.arrays["output"]}
    return Case(launches, arrays, {"output": gated(x, gate[None], weight, float(tiny))})


def _curve(seen: Seen) -> list[Line]:
    """Return the output, and the gate itself, over the gate."""
    gate, right = seen.arrays["gate"][0], np.asarray(seen.case.want["output"].value)[0]
    open_gates = gate >= 0
    return [
        Line("silu(z)", gate, right, seen.arrays["output"][0]),
        Line("z", gate[open_gates], gate[open_gates]),
    ]


EXERCISE = Exercise(
    name="gated_norm",
    title="A gate after the norm",
    make=_make,
    sizes={
        "half": Size(0, 1, (1,)),
        "rows": Size(1, 3, (2,), beyond=8),
        "columns": Size(1, 130, (2, 8, 63, 64, 65, 300), beyond=800),
    },
    example={"half": 1, "rows": 1, "columns": 256},
    hints=(
        "It is RMSNorm with one more factor. The mean square is that of x alone; the gate does not enter it.",
        "z / (1 + exp(-z)): where z is far below 0, the exponential is infinite, and z / inf is -0. Where z is large, "
        "it is 0, and the result is z. Which other formulas do as well?",
        "z = float32(gate[row, column]) comes before the exponential. math.exp of a float16 is computed in float16, "
        "which has 11 binary digits and ends at 65,504.",
    ),
    costs=ANYWHERE,
    tutorial=17,
    picture=Picture(
        results("A gate's switch: silu(z)", "z", _curve),
        "an open gate lets nearly all of z through, a closed one nearly nothing; a little below 0 silu dips to -0.28",
        _switch,
    ),
)
