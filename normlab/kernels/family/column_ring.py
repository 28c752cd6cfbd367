"""What the kernels of `columns` share: a block's size, the ring of rows that a thread fetches ahead, its channels."""

from functools import cache

from normlab.engine import cuda, load, uint32

THREADS = 256
RESIDENT = 3  # blocks of a multiprocessor at least, which leaves a thread 80 registers
SLOTS = 8  # of a thread's ring, for vectors of one array; all but one are on their way
IN_FLIGHT = SLOTS - 1
SLOTS_OF_TWO = 5  # for vectors of two arrays
IN_FLIGHT_OF_TWO = SLOTS_OF_TWO - 1


@cuda.jit(device=True)
def next_slot(slot, first, slots):
    """The place behind this one in a ring that begins with the slot `first`."""
    return uint32(slot + 1) if slot < slots - 1 else uint32(first)


@cache
def statistics_loader(width):
    """The device function `load_statistics(centers, scales, mean, invvar, batch, channel, channels, sets)`."""

    @cuda.jit(device=True)
    def load_statistics(centers, scales, mean, invvar, batch, channel, channels, sets):
        each = channels // sets
        for k in range(width):
            index = batch * sets + (channel + k if each == 1 else (channel + k) // each)
            centers[k] = load(mean, index)
            scales[k] = load(invvar, index)

    return load_statistics
