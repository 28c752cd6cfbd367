"""budget: 63 of 64 threads have nothing to do.

Says: blocks launched
"""


def blocks(n):
    return n
