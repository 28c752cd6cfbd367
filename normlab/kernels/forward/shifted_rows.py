"""Lay out rows that may begin in the middle of a vector, for the registers of step 6 (`stages.shifted`)."""

from normlab.kernels.forward.layouts import RegisterLayout
from normlab.kernels.plan import Chosen
from normlab.stages.shifted import ShiftedMap
from normlab.stages.vector import BYTES, WARP, ThreadMap, map_threads, whole_warps

# Numbers without a name are fractions of a copy that LayerNorm of bfloat16 reached on an H100.
# Columns. 129 columns on an H200: 0.59, one element at a time on an H100 0.18. Most rows of up to 255, and in 16
# bits of up to 511, come as tiles (`short_rows`), which need copies of four bytes.
FROM = 128
SHORTEST = 4  # lanes per row
# Vectors per thread, by preference: the first that leaves few of all threads' vectors without columns. Three: 1,153
# columns 0.89, five 0.94; 4,001 columns of float32 0.90, four 0.95.
VECTORS = (4, 5)
# The same for long rows of LayerNorm in 16 bits. 4,001 columns: 0.91, four 0.88; 6,145: 0.89, four 0.84.
LONG, LONG_VECTORS = 3000, (3, 4, 5)
FILLED = 0.8  # of all threads' vectors have columns
# So many vectors only on so many lanes per row. 257 columns, with five vectors on 8 lanes: 0.79, with three on 16: 0.88
MANY, MANY_FROM = 5, 16
THREADS = 128  # per block, at least, to share staged parameters. 4,001 columns: 0.85; with 256 0.77
# Of a multiprocessor, for what its threads hold of their rows; more would spill. LayerNorm has fewer, because its
# second parameter takes registers, too. The key: is it RMSNorm?
REGISTERS = {True: 44 * 1024, False: 36 * 1024}
# Threads per multiprocessor, at most. The key: do rows of x and of the output begin alike? If not, x is read twice.
RESIDENT = {True: 1024, False: 768}
# In 16 bits, where registers allow it: RMSNorm, and up to so many elements of LayerNorm in whole warps. 2,047 columns:
# 0.91, with 1,024 threads 0.89. In part of a warp it is slower: 333 columns, 0.86 and 0.89.
MORE_RESIDENT, FEW_ELEMENTS = 1152, 24
WHY = (
    "rows that begin in the middle of a vector: 0.92 / 0.95 of a copy at 769 columns of bfloat16 (LayerNorm / RMSNorm) "
    "on an H100; in vectors of one element 0.39 / 0.45 at 333 columns"
)


def layout_for(n2: int, input_bytes: int, parameter_bytes: int, alike: bool, rms: bool) -> Chosen | None:
    """Return the `RegisterLayout` of rows that may begin anywhere.

    None: vectors that all rows allow are as fast, or registers do not hold the row. input_bytes, parameter_bytes: per
    element of x and of the output. alike: rows of both begin alike.
    """
    width = BYTES // max(input_bytes, parameter_bytes)
    halves = width == BYTES // 2
    thread_map = map_for(n2, width, LONG_VECTORS if halves and not rms and n2 >= LONG else VECTORS)
    elements, rows = thread_map.elements, -(-THREADS // thread_map.threads)
    few = elements <= FEW_ELEMENTS and thread_map.threads >= WARP
    most = MORE_RESIDENT if alike and halves and (rms or few) else RESIDENT[alike]
    resident = min(most, REGISTERS[rms] // elements) // (thread_map.threads * rows)
    # A block waits alone on its multiprocessor: 16,383 columns of bfloat16 reach 0.54 / 0.68 of a copy, in vectors of
    # one element 0.44 / 0.73; 8,191 of float32 0.63 / 0.77, and 0.83 / 1.01.
    alone = resident == 1 and (rms or not halves)
    if n2 < FROM or resident < 1 or alone:
        return None
    inner = (n2 if alike else max(0, n2 - 2 * width)) // thread_map.span
    shifted = ShiftedMap(thread_map, inner, input_bytes, parameter_bytes, alike)
    return Chosen(RegisterLayout(thread_map, rows, resident, shifted), WHY)


def map_for(n2: int, width: int, preferred: tuple[int, ...]) -> ThreadMap:
    """Return the thread map of rows that may begin anywhere: the first preferred one that is filled, or the fullest."""
    count = -(-(n2 + width - 1) // width)  # vectors: a row may begin with the last element of one
    maps = [map_of(count, vectors, width) for vectors in preferred]
    maps = [one for one in maps if one.vectors < MANY or one.threads >= MANY_FROM]

    def filled(one: ThreadMap) -> float:
        return count / (one.threads * one.vectors)

    return next((one for one in maps if filled(one) >= FILLED), max(maps, key=filled))


def map_of(count: int, vectors: int, width: int) -> ThreadMap:
    """Return the thread map of `count` vectors, up to so many per thread: on a power of two of lanes, or on warps."""
    needed = max(SHORTEST, -(-count // vectors))
    threads = whole_warps(needed) if needed > WARP else 1 << (needed - 1).bit_length()
    return map_threads(count * width, width, threads)._replace(whole=False)
