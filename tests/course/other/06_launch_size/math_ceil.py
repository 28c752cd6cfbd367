"""ceil of the quotient."""

import math


def blocks(n):
    return math.ceil(n / THREADS)
