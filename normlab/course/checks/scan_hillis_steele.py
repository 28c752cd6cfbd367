"""Exercise: an inclusive scan in few steps (Hillis and Steele 1986, "Data parallel algorithms")."""

from normlab.course.data import scan_case
from normlab.course.exercise import BARRIERS, EXCHANGES, Case, Cost, Drawn, Exercise, Size
from normlab.course.pictures import Picture

THREADS = 64


def _make(drawn: Drawn) -> Case:
    return scan_case(drawn, THREADS)


EXERCISE = Exercise(
    name="scan_hillis_steele",
    title="A running sum, by doubling distances",
    make=_make,
    sizes={"rows": Size(1, 2), "columns": Size(1, THREADS, (2, 31, 32, 33, THREADS))},
    example={"rows": 1, "columns": THREADS},
    hints=(
        "In step number level the distance is 1 << level, and the line is number level % 2.",
        "Each step: write the own sum to the line; barrier; if column >= distance, add lines[…, column - distance].",
        "Keep the own sum in a variable that begins with x[row, column], or with float32(0) beyond the end. Guard the "
        "load, the addition and the store; leave the barrier outside of every if.",
    ),
    costs=(
        Cost(BARRIERS, "with two lines in turn, one for each of 6 steps is enough", times=1.2),
        Cost(EXCHANGES, "log2(64) steps are enough, and in each a thread reads one sum of another thread", times=2.25),
    ),
    tutorial=5,
    picture=Picture("tree", "each step's arrows reach twice as far as the last step's; a black line is a barrier"),
)
