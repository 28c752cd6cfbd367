"""budget: a block too many where n is a multiple.

Says: 4 blocks launched, at most 3 allowed
"""


def blocks(n):
    return n // THREADS + 1
