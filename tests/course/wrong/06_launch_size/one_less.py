"""values: a thread for each element but the last.

Says: no thread wrote it
"""


def blocks(n):
    return max(1, (n + THREADS - 2) // THREADS)
