"""values: a table of the sizes that were announced once.

Says: no thread wrote it
"""


def blocks(n):
    return 1 + (n > 64) + (n > 128) + (n > 192) + (n > 256) + (n > 320) + (n > 384)
