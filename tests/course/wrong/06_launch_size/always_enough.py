"""values: enough for the largest n, and too many for others.

Says: no thread wrote it
"""


def blocks(n):
    return 7
