"""budget: knows three multiples of the block, and gives others a block too many.

Says: blocks launched
"""


def blocks(n):
    return n // THREADS + 1 - (n == 64 or n == 128 or n == 192)
