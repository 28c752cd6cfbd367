"""exception: not a whole number.

Says: 1 to 1024
"""


def blocks(n):
    return n / THREADS
