"""Exercise: find the missing barrier in a block's sum, which adds the warps' sums through shared memory.

One block sums row after row, and the rows share one buffer. The race needs two rows and two warps, so 2 is an edge of
both sizes. Solved in `normlab.stages.block.block_sum`.
"""

from normlab.course.data import sums_case
from normlab.course.exercise import BARRIERS, Case, Cost, Drawn, Exercise, Size
from normlab.course.pictures import Picture, phases


def _make(drawn: Drawn) -> Case:
    return sums_case(drawn, 1, 32 * drawn["warps"])


EXERCISE = Exercise(
    name="block_sum",
    title="From warps to a block: one barrier too few",
    make=_make,
    sizes={"rows": Size(1, 4, (1, 2), beyond=12), "warps": Size(1, 4, (1, 2))},
    lines=1,
    example={"rows": 2, "warps": 2},
    hints=(
        "With a single row nothing is wrong. What does the second row do to the buffer?",
        "A warp that has read all sums goes on to the next row and writes its sum there, while another still reads.",
        "All threads must have read before any of them writes again: cuda.syncthreads() after the loop that reads, "
        "or before the line that writes.",
    ),
    costs=(Cost(BARRIERS, "2 for each row are enough"),),
    tutorial=5,
    picture=Picture(
        phases("buffer"),
        "does a warp write its sum for the next row while another still reads this row's?",
        lambda: _make(Drawn({"rows": 2, "warps": 4}, "normal", 0)),
    ),
)
