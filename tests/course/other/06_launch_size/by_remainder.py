"""One more where something is left."""


def blocks(n):
    whole = n // THREADS
    if n % THREADS != 0:
        whole += 1
    return whole
