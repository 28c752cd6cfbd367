"""exception: no block at all for 63 elements.

Says: 1 to 1024
"""


def blocks(n):
    return n // THREADS
