"""time: an endless loop on the host.

Says: endless loop
"""


def blocks(n):
    while n > 0:
        pass
    return 1
