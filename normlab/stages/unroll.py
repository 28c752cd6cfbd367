"""Turn a number into a compile-time constant: a loop's counter, or an argument that has few values.

`repeated` writes out a loop that is too long for the compiler to unroll. `chosen` has a branch per value of an
argument, in which the number is a constant: registers take no index that is known only when the kernel runs.
"""

from functools import cache
from typing import Any

from normlab.engine import cuda


@cache
def repeated(step: Any, count: int) -> Any:
    """Return the device function `steps(k, *rest)`, which calls `step(k, *rest)`, `step(k + 1, *rest)`, ….

    It calls `step` `count` times. If the first k is a constant, so are all later ones.
    """
    if count == 1:
        return step
    # Each function calls two of half the length: the nesting is log2(count) deep, and the compiler inlines all of it.
    half = count // 2
    first_half, second_half = repeated(step, half), repeated(step, count - half)

    @cuda.jit(device=True)
    def steps(k, *rest):
        # Straight-line code. A loop that stays a loop costs a counter, a comparison and an address per step, and keeps
        # the compiler from moving the next step's loads before this step's arithmetic. The calling kernel must have the
        # registers that the loads under way need.
        first_half(k, *rest)
        second_half(k + half, *rest)  # k + half is a constant if k is

    return steps


@cache
def chosen(make: Any, least: int, most: int) -> Any:
    """Return the device function `step(k, *rest)`, which calls `make(k)(*rest)`, where least <= k <= most."""
    if least == most:
        only = make(least)

        @cuda.jit(device=True)
        def step(k, *rest):
            only(*rest)

        return step
    middle = (least + most) // 2
    step_low, step_high = chosen(make, least, middle), chosen(make, middle + 1, most)

    @cuda.jit(device=True)
    def steps(k, *rest):
        # Halving finds the branch in log2 of the number of values in comparisons.
        if k <= middle:
            step_low(k, *rest)
        else:
            step_high(k, *rest)

    return steps
