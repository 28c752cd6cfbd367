"""Floor division rounds down, so the negated one rounds up."""


def blocks(n):
    return -(-n // THREADS)
