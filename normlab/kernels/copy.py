"""A strided array to a contiguous one, on the device: for arrays of a library that we cannot ask to copy."""

from normlab.engine import cuda

DIMENSIONS = 6
THREADS = 256


@cuda.jit
def copy_strided(source, target):
    """source: DIMENSIONS-dimensional with any strides; target: its elements in C order, 1-D. A thread an element."""
    index = cuda.grid(1)
    if index >= target.shape[0]:
        return
    rest = index
    f = rest % source.shape[5]
    rest //= source.shape[5]
    e = rest % source.shape[4]
    rest //= source.shape[4]
    d = rest % source.shape[3]
    rest //= source.shape[3]
    c = rest % source.shape[2]
    rest //= source.shape[2]
    b = rest % source.shape[1]
    target[index] = source[rest // source.shape[1], b, c, d, e, f]
