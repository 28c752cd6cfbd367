"""budget: right, by single elements.

Says: loads by warps, at most 8 allowed
"""


def copy(x, y):
    first = cuda.grid(1) * 4
    n = x.shape[0]
    for i in range(first, min(first + 4, n)):
        y[i] = x[i]
