"""Copy a strided array to a contiguous one on the device, for arrays of a library that cannot be asked to copy."""

from normlab.engine import cuda

DIMENSIONS = 6
THREADS = 256  # a copy needs no registers and no shared memory, so any number of whole warps would do


@cuda.jit
def copy_strided(source, target):
    """Copy source, DIMENSIONS-dimensional with any strides, to target, 1-D, in C order. One thread per element."""
    index = cuda.grid(1)
    if index >= target.shape[0]:
        return
    # The indices from the last dimension to the first: neighbouring threads write neighbouring elements.
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
