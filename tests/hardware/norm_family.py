"""Every kernel of the norm family on a GPU, held to its bounds: python tests/hardware/norm_family.py [SHARE SHARES]

`h200.sh clean` runs shares of it under compute-sanitizer's tools. The shapes take every walk, with vectors and not,
one piece a set and several, sets of one warp, of several and of more than a block holds; and batch norms of channels
last that are one kernel a pass (`FUSED`), which has to be so: not on a GPU below compute capability 9.0.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

if not __package__:  # run as a script
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from family.examples import FUSED, NORMS, example

from normlab.engine import gpu_available, using

# shape, groups, channels last
CASES = [
    ((3, 4, 37), 2, False),
    ((2, 6, 5, 8), 3, False),
    ((2, 2, 52, 52), 1, False),
    ((40, 8, 7, 7), 4, False),
    ((2, 4, 100, 100), 2, False),
    ((300, 2, 4), 1, False),
    ((6, 40, 9, 9), 8, True),
    ((2, 33, 9, 8), 11, True),
]
DTYPES = ("float32", "bfloat16", "float64")


def jobs() -> list[Callable[[], None]]:
    """Each raises AssertionError where a norm is off by more than its bound."""

    def whole(norm: str, dtype: str, shape: tuple[int, ...], groups: int, last: bool) -> None:
        example(norm, shape, dtype, groups=groups, last=last).examine()

    def some(shape: tuple[int, ...], dtype: str) -> None:
        example("batch", shape, dtype, last=len(shape) > 2, offset=1.0).examine_some()

    wholes = [partial(whole, norm, dtype, *case) for norm in NORMS for dtype in DTYPES for case in CASES]
    return wholes + [partial(some, *one) for one in FUSED]


if __name__ == "__main__":
    if not gpu_available():
        sys.exit("tests/hardware/norm_family.py needs an NVIDIA GPU")
    share, shares = map(int, sys.argv[1:] or (0, 1))
    found = jobs()[share::shares]
    with using("gpu"):
        for job in found:
            job()
    print(f"{len(found)} norms are within their bounds")
