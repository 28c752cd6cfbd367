"""A program that ends in every way that its argument names."""

import atexit
import sys

import numpy as np
from numba import cuda


@cuda.jit
def count(x):
    cuda.atomic.add(x, 0, 1)


def last_words():
    x = np.zeros(1, np.int32)
    count[1, 2](x)
    print("at exit:", x[0])


atexit.register(last_words)
print(sys.argv, __name__, __file__ == sys.argv[0], cuda.is_available())
if sys.argv[1] == "three":
    sys.exit(3)
if sys.argv[1] == "words":
    sys.exit("in words")
if sys.argv[1] == "interrupt":
    raise KeyboardInterrupt
