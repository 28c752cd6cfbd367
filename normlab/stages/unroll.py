"""Repeat a step for k, k + 1, … in straight-line code, for loops that are too long for the compiler to unroll.

A loop that stays a loop costs a counter, a comparison and an address per step. It also keeps the compiler from moving
the next step's loads before this step's arithmetic. Straight-line code needs more registers instead; the calling kernel
must have them.
"""

from functools import cache
from typing import Any

from normlab.engine import cuda


@cache
def repeated(step: Any, count: int) -> Any:
    """Return the device function `steps(k, *rest)`, which calls `step(k, *rest)`, `step(k + 1, *rest)`, ….

    It calls `step` `count` times. If the first k is a constant, every k is one.
    """
    if count == 1:
        return step
    # Each function calls two of half the length: the nesting is log2(count) deep, and the compiler inlines all of it.
    half = count // 2
    first_half, second_half = repeated(step, half), repeated(step, count - half)

    @cuda.jit(device=True)
    def steps(k, *rest):
        first_half(k, *rest)
        second_half(k + half, *rest)  # a constant sum if k is one

    return steps
