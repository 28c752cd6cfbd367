"""values: right for 64 elements at most.

Says: no thread wrote it
"""


def blocks(n):
    return 1
