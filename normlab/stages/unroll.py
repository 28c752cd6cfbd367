"""A step that is made for k, k + 1, … in straight-line code, where the compiler would unroll no loop as long as that.

Without it every k of a product's tile, or every vector of a row, pays for a counter, a comparison and an address, and
no load of the next can be moved before the arithmetic of this one. It takes registers: whoever calls it sees to it that
there are enough.
"""

from functools import cache
from typing import Any

from normlab.engine import cuda


@cache
def repeated(step: Any, count: int) -> Any:
    """The device function `steps(k, *rest)`: `step(k, *rest)`, `step(k + 1, *rest)`, …, `count` times.

    It is made of two halves, these of halves in turn, and each k is a constant where the first one is.
    """
    if count == 1:
        return step
    half = count // 2
    first_half, second_half = repeated(step, half), repeated(step, count - half)

    @cuda.jit(device=True)
    def steps(k, *rest):
        first_half(k, *rest)
        second_half(k + half, *rest)

    return steps
