"""Hold what the kernels of `columns` share: block size, pipeline stages per thread, and the loading of statistics."""

from functools import cache

from normlab.engine import cuda, load, uint32

THREADS = 256
RESIDENT = 3  # blocks per multiprocessor at least, which leaves a thread 80 registers
SLOTS = 8  # pipeline stages per thread, for vectors of one array; all but one are in flight
IN_FLIGHT = SLOTS - 1
SLOTS_OF_TWO = 5  # the same for vectors of two arrays
IN_FLIGHT_OF_TWO = SLOTS_OF_TWO - 1


@cuda.jit(device=True)
def next_slot(slot, first, slots):
    """Return the slot after this one, in a ring of the slots `first` to `slots` - 1."""
    return uint32(slot + 1) if slot < slots - 1 else uint32(first)


@cache
def statistics_loader(width):
    """Return the device function `load_statistics(centers, scales, mean, invvar, batch, channel, channels, sets)`.

    It loads mean and invvar of the sets to which the thread's `width` channels belong.
    """

    @cuda.jit(device=True)
    def load_statistics(centers, scales, mean, invvar, batch, channel, channels, sets):
        each = channels // sets  # channels per set; 1 saves the division below
        for k in range(width):
            index = batch * sets + (channel + k if each == 1 else (channel + k) // each)
            centers[k] = load(mean, index)
            scales[k] = load(invvar, index)

    return load_statistics
