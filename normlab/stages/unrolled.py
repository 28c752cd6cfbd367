"""A loop without a loop, for bodies so long that the compiler would not unroll it.

Unrolled, the loads of later rounds are issued while earlier ones compute, and no index is computed at run time. It
takes registers: whoever calls it sees to it that there are enough.
"""

from functools import cache
from typing import Any

from normlab.engine import cuda


@cache
def unrolled(body: Any, times: int) -> Any:
    """The device function `rounds(…, first)`: the device function `body(…, k)` for k = first to first + times - 1."""
    if times == 1:
        return body
    rounds_before, last = unrolled(body, times - 1), times - 1

    @cuda.jit(device=True)
    def rounds(*args):
        rounds_before(*args)
        body(*args[:-1], args[-1] + last)

    return rounds
