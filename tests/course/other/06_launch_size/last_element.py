"""The block of the last element, and all before it."""


def blocks(n):
    return (n - 1) // THREADS + 1
