"""Exercise: a row's moments by a block. Solved in `normlab.stages.row.row_moments`."""

from normlab.course.data import moments_case
from normlab.course.exercise import ANYWHERE, Case, Drawn, Exercise, Size
from normlab.course.pictures import Picture, readers


def _make(drawn: Drawn) -> Case:
    return moments_case(drawn, "row_moments", drawn["rows"], 64)


EXERCISE = Exercise(
    name="row_moments",
    title="Mean and variance of a row, by a whole block",
    make=_make,
    sizes={"rows": Size(1, 2, (3,)), "columns": Size(1, 130, (1, 2, 63, 64, 65, 128, 300), beyond=800)},
    example={"rows": 1, "columns": 256},
    # In each row of 128 columns, which are "far", a thread has two. There sums of squares miss the bound by the most:
    # numbers around 1000, and threads with more columns, have a wider bound than such sums need.
    kinds=("counting", "normal", "offset", "far"),
    hints=(
        "range(start, stop, step) walks in steps: where does thread t start, and how many threads are there?",
        "cuda.threadIdx.x is t, cuda.blockDim.x the number of threads. Take each value in by welford_step.",
        "Behind the loop, not in it: mean, m2, count = warp_moments(mean, m2, count), then the same with block_moments "
        "and buffer. All threads must come there.",
    ),
    costs=ANYWHERE,
    tutorial=6,
    picture=Picture(
        readers("x"), "neighbouring threads read neighbouring columns, and every thread comes again 64 columns on"
    ),
)
