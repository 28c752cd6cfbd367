"""Exercise: row sums that load every sector once."""

from normlab.course.data import sums_case
from normlab.course.exercise import (
    BARRIERS,
    SHARED_LOADS,
    SHARED_STORES,
    SHUFFLES,
    STORES,
    Case,
    Cost,
    Drawn,
    Exercise,
    Size,
)
from normlab.course.pictures import Picture


def _make(drawn: Drawn) -> Case:
    return sums_case(drawn, -(-drawn["rows"] // 32), 32)


EXERCISE = Exercise(
    name="coalescing",
    title="A puzzle: every sector once",
    make=_make,
    sizes={"rows": Size(1, 70, (1, 2, 31, 32, 33), beyond=130)},
    example={"rows": 32},
    hints=(
        "Let the 32 lanes read the 32 elements of one row together, and take the rows one after another.",
        "After warp_sum_butterfly every lane has the row's sum. Which lane keeps it, if lane i is to store row i?",
        "own = total if lane == row; after the loop sums[first_row + lane] = own, guarded. In the loop guard the load "
        "(0 where there is no row), not the sum.",
    ),
    costs=(  # a way through a tile in shared memory in place of the reference solution's shuffles is right, too
        Cost(BARRIERS, "the 32 lanes of a warp need no more", spare=STORES),
        Cost(SHARED_LOADS, "a padded tile serves 32 lanes at once", spare=SHUFFLES),
        Cost(SHARED_STORES, "a padded tile serves 32 lanes at once", spare=SHUFFLES),
    ),
    tutorial=4,
    picture=Picture(
        "sectors", "the costliest load: 32 lanes together on one row, 4 sectors, and nothing fetched in vain"
    ),
)
