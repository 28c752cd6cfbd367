"""Exercise: an inclusive scan in two halves, up and down a tree (Brent and Kung 1982; Blelloch 1990)."""

from normlab.course.data import scan_case
from normlab.course.exercise import BARRIERS, SHARED_ACCESSES, SHUFFLES, Case, Cost, Drawn, Exercise, Size
from normlab.course.pictures import Picture, phases

THREADS = 64


def _make(drawn: Drawn) -> Case:
    return scan_case(drawn, THREADS)


EXERCISE = Exercise(
    name="scan_work_efficient",
    title="A running sum, without wasted work",
    make=_make,
    sizes={"rows": Size(1, 2), "columns": Size(1, 2 * THREADS, (2, 63, 64, 65, 127, 2 * THREADS))},
    example={"rows": 1, "columns": 2 * THREADS},
    hints=(
        "Let thread t take the (t + 1)-th element that adds in a step. At distance d on the way up that is element "
        "2 * d * (t + 1) - 1, if it is below 128.",
        "On the way down the distances are 32, 16, …, 1, and the element is 2 * d * (t + 1) - 1 + d, if it is below "
        "128. Both ways: line[end] += line[end - d].",
        "Put elements thread and thread + 64 into the line, 0 beyond the end of the row. One cuda.syncthreads() before "
        "each step, outside of every if, and one before the sums are read to be stored.",
    ),
    costs=(
        # Blelloch's own way, an exclusive scan, makes 1.27 times as many; Hillis and Steele's way 1.67 times.
        Cost(SHARED_ACCESSES, "a tree makes fewer than 2 * 128 additions", times=1.3),
        Cost(BARRIERS, "one before each step, and one before the sums are stored", times=1.2),
        Cost(SHUFFLES, "this scan goes through shared memory, where its work is counted"),
    ),
    tutorial=5,
    picture=Picture(
        phases("line"),
        "fewer and fewer elements from step to step on the way up, then more and more on the way down; nothing red",
    ),
)
