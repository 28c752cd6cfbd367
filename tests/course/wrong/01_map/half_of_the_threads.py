"""budget: a thread takes two neighbours, and half of the threads rest.

Says: let all threads share the work
"""


def double(x, y):
    i = 2 * cuda.threadIdx.x
    if i < x.shape[0]:
        y[i] = float32(2) * x[i]
    if i + 1 < x.shape[0]:
        y[i + 1] = float32(2) * x[i + 1]
