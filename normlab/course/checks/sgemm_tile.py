"""Exercise: a matrix product by shared tiles. Solved in the ladder `normlab.kernels.sgemm`, which goes on."""

from normlab import oracle
from normlab.course.data import nothing, values
from normlab.course.exercise import BARRIERS, Answer, Case, Cost, Drawn, Exercise, Launch, Size
from normlab.course.pictures import Picture, loads

TILE = 8


def _make(drawn: Drawn) -> Case:
    m, k, n = drawn["m"], drawn["k"], drawn["n"]
    a, b = values(drawn.kind, drawn.rng, m, k), values("normal", drawn.rng, k, n)
    return Case(
        launches=[Launch("product", (-(-n // TILE), -(-m // TILE)), (TILE, TILE), ("a", "b", "c"))],
        arrays={"a": a, "b": b, "c": nothing(m, n)},
        want={"c": Answer(oracle.product(a, b), oracle.product_bound(a, b))},
    )


EXERCISE = Exercise(
    name="sgemm_tile",
    title="A matrix product, by tiles",
    make=_make,
    sizes={
        "m": Size(1, 17, (1, 9, 25)),
        "k": Size(1, 17, (1, 9, 25), beyond=64),
        "n": Size(1, 17, (1, 9, 25)),
    },
    kinds=("counting", "normal"),
    example={"m": 16, "k": 16, "n": 16},
    hints=(
        "Thread (x, y) loads a[row, first + x] and b[first + y, column]: what if these lie outside?",
        "Outside of a matrix the tile gets float32(0): it adds nothing. All threads write both tiles, and come to both "
        "barriers.",
        "Between the barriers: for k in range(TILE): total += tile_a[y, k] * tile_b[k, x].",
    ),
    costs=(Cost(BARRIERS, "2 for each pair of tiles are enough"),),
    tutorial=13,
    picture=Picture(
        loads("a"), "each element of a is loaded once for each tile beside it: twice here, and not 16 times"
    ),
)
