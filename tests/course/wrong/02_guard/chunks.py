"""budget: 16 threads take four neighbours each.

Says: let all threads share the work
"""


def negate(x, y):
    first = 4 * cuda.threadIdx.x
    for i in range(first, min(first + 4, x.shape[0])):
        y[i] = -x[i]
