"""budget: each thread loads its three elements.

Says: sectors loaded
"""


def sum_of_three(x, y):
    tile = cuda.shared.array(34, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    n = x.shape[0]
    total = float32(0)
    for k in range(i - 1, i + 2):
        if 0 <= k < n:
            total += x[k]
    if i < n:
        y[i] = total
