"""exception: rounds down where less than half a block is left.

Says: blocks(1) gives 0
"""


def blocks(n):
    return round(n / THREADS)
