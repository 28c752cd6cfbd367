"""budget: enough for the largest n, and too many for others.

Says: blocks launched
"""


def blocks(n):
    return 7
