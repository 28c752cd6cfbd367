"""Lay out rows that may begin in the middle of a vector, for the registers of step 6 (`stages.shifted`)."""

from normlab.kernels.forward.layouts import RegisterLayout
from normlab.kernels.plan import Chosen
from normlab.stages.shifted import ShiftedMap
from normlab.stages.vector import BYTES, WARP, ThreadMap, map_threads, whole_warps

# Numbers without a name are fractions of a copy that LayerNorm of bfloat16 reached on an H100.
FROM = 128  # columns. 129 columns on an H200: 0.59, one element at a time on an H100 0.18
SHORTEST = 4  # lanes per row
# Vectors per thread. With four, 1,025 columns would leave a third of all threads' vectors without columns: 0.71, with
# five 0.87. So five are taken where four would fill less than FILLED. Three: 0.69; at 4,001 columns 0.77, four 0.85.
VECTORS, MORE_VECTORS, FILLED = 4, 5, 0.8
THREADS = 128  # per block, at least, to share staged parameters. 4,001 columns: 0.85; with 256 0.77
# Of a multiprocessor, for what its threads hold of their rows; more would spill. In 32 bits LayerNorm's two parameters
# take more of the others. The key: RMSNorm, or 16 bits.
REGISTERS = {True: 44 * 1024, False: 36 * 1024}
RESIDENT = {True: 1024, False: 768}  # threads per multiprocessor, at most; fewer where x is read a second time
WHY = (
    "rows that begin in the middle of a vector: 0.89 / 0.94 of a copy at 769 columns of bfloat16 (LayerNorm / RMSNorm) "
    "on an H100; in vectors of one element 0.39 / 0.45 at 333 columns"
)


def layout_for(n2: int, input_bytes: int, parameter_bytes: int, alike: bool, rms: bool) -> Chosen | None:
    """Return the `RegisterLayout` of rows that may begin anywhere.

    None: vectors that all rows allow are as fast, or registers do not hold the row. input_bytes, parameter_bytes: per
    element of x and of the output. alike: rows of both begin alike.
    """
    width = BYTES // max(input_bytes, parameter_bytes)
    halves = width == BYTES // 2
    count = -(-(n2 + width - 1) // width)  # vectors: a row may begin with the last element of one
    thread_map = map_of(count, VECTORS, width)
    if count < FILLED * thread_map.threads * thread_map.vectors:
        thread_map = map_of(count, MORE_VECTORS, width)
    # registers hold a thread's elements in order of columns, and its vectors as they lie in memory
    held = thread_map.elements + thread_map.elements * input_bytes // 4
    rows = -(-THREADS // thread_map.threads)
    resident = min(RESIDENT[alike], REGISTERS[rms or halves] // held) // (thread_map.threads * rows)
    # A block waits alone on its multiprocessor: 16,383 columns of bfloat16 reach 0.54 / 0.68 of a copy, in vectors of
    # one element 0.44 / 0.73; 8,191 of float32 0.63 / 0.77, and 0.83 / 1.01.
    alone = resident == 1 and (rms or not halves)
    if n2 < FROM or resident < 1 or alone:
        return None
    shifted = ShiftedMap(thread_map, max(0, n2 - 2 * width) // thread_map.span, input_bytes, parameter_bytes, alike)
    return Chosen(RegisterLayout(thread_map, rows, resident, shifted), WHY)


def map_of(count: int, vectors: int, width: int) -> ThreadMap:
    """Return the thread map of `count` vectors, up to so many per thread: on a power of two of lanes, or on warps."""
    needed = max(SHORTEST, -(-count // vectors))
    threads = whole_warps(needed) if needed > WARP else 1 << (needed - 1).bit_length()
    return map_threads(count * width, width, threads)._replace(whole=False)
