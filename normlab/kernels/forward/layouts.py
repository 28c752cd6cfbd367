"""How the fast forward steps lay out a row: several rows a block (step 6), or a row in a cluster's blocks (step 7).

A layout depends on no n1, so that a row's bits are the same in every batch.
"""

from typing import NamedTuple

from normlab.kernels.forward.tables import NARROW, SLICES, TABLES, Candidate
from normlab.kernels.plan import Chosen, Device
from normlab.kernels.words import counted
from normlab.stages.vector import BYTES, ThreadMap, map_threads, whole_warps


class Rows(NamedTuple):
    """What the kernel of step 6 is built for.

    thread_map: of a row. rows: per block. resident: blocks that a multiprocessor has registers for.
    """

    thread_map: ThreadMap
    rows: int
    resident: int = 1

    @property
    def words(self) -> list[str]:
        """Return each number in words."""
        threads, vectors, width, _ = self.thread_map
        return [
            f"{counted(self.rows, 'row')} per block, {counted(threads, 'thread')} each",
            f"{counted(vectors, 'vector')} of {counted(width, 'element')} per thread, in registers",
            f"registers for at least {counted(self.resident, 'block')} on a multiprocessor",
        ]


MAX_THREADS = 1024
MAX_ELEMENTS = {512: 64, 1024: 32}  # per thread, in a block of up to so many: 65,536 registers are shared among them


def rows_for(n2: int, width: int, itemsize: int, rms: bool) -> Chosen | None:
    """Return the `Rows` for n2 columns, with vectors of `width` elements; itemsize: of the widest array.

    None: a block's registers do not hold the row.
    """
    count = -(-n2 // width)
    otherwise = Candidate(n2, 1, "a block's registers, as far as they go; not measured", threads=MAX_THREADS)
    most = n2 * (BYTES // itemsize)  # columns of as many vectors of 16 bytes, times width
    chosen = next((row for row in TABLES[itemsize, rms] if most <= row.columns_up_to * width), otherwise)
    thread_map = map_threads(n2, width, chosen.threads or whole_warps(-(-count // chosen.vectors)))
    threads = thread_map.threads * chosen.rows
    largest = min(limit for limit in MAX_ELEMENTS if limit >= threads)
    if thread_map.elements > MAX_ELEMENTS[largest]:
        return None
    resident = 1 if chosen.resident_threads is None else max(1, chosen.resident_threads // threads)
    return Chosen(Rows(thread_map, chosen.rows, resident), chosen.why)


STATIC_BYTES = 2304  # of shared memory, at most: the exchange buffer, and the sums gathered from other blocks
SPLIT_FROM = 2**15  # columns: a block's registers hold as many, of whatever alignment
LONGEST = 2**18  # columns: a cluster might hold more, but is alone on its multiprocessors (see `split_rows`)
KEPT = 2048  # vectors per slice, at most, that registers hold for all passes
FEW_THREADS = 256  # per block, at most: three such blocks leave each thread the registers for its part of the row
MANY = 16  # slices per multiprocessor: more than five times as many as it holds at once
SMALLEST_BLOCK = 64  # threads; a slice is eight blocks then, or four, and more would only have more to wait for


class Slices(NamedTuple):
    """What the kernel of step 7 is built for.

    thread_map: of a slice. blocks: slices of a row. itemsize: bytes per element of x. The bits depend on these.

    spread: blocks that share a slice. parameter_bytes: of an element of weight and bias, where shared memory holds them
    too; else 0, and they come from global memory for every row. parameters: how many of both there are. readers:
    clusters that read the same row; each writes one of so many vectors of each thread. one_row: whether a cluster takes
    one row and ends, and the GPU starts the next one where there is room; else it takes rows in turn.
    """

    thread_map: ThreadMap
    blocks: int
    itemsize: int
    spread: int = 1
    parameter_bytes: int = 0
    parameters: int = 2
    readers: int = 1
    one_row: bool = False

    @property
    def cluster(self) -> int:
        """Return the blocks that share a row, as one of its readers."""
        return self.blocks * self.spread

    @property
    def threads(self) -> int:
        """Return the threads per block."""
        return self.thread_map.threads // self.spread

    @property
    def warps(self) -> int:
        """Return the warps per block."""
        return self.thread_map.warps // self.spread

    @property
    def stretch(self) -> int:
        """Return the columns of a span that a block has side by side: the distance of a thread's vectors in it."""
        return self.thread_map.span // self.spread

    @property
    def held_columns(self) -> int:
        """Return the columns of a row in a block's shared memory."""
        return self.thread_map.columns // self.spread

    @property
    def beside(self) -> bool:
        """Return True if the parameters lie beside the row in shared memory."""
        return self.parameter_bytes > 0

    @property
    def shared_bytes(self) -> int:
        """Return the dynamic shared memory per block: its parts of the row, and of weight and bias."""
        return self.thread_map.columns * (self.itemsize + self.parameters * self.parameter_bytes) // self.spread

    @property
    def kept(self) -> bool:
        """Return True if a thread's registers hold its part of the row."""
        threads, vectors, _, whole = self.thread_map
        # Two blocks of 512 threads leave each 64 registers. Eight vectors and their addresses would spill, and so would
        # four of a row that ends within its slice, whose conditions take registers, too. Three blocks leave 40: any
        # four would spill.
        fits = (whole and not self.one_row) or threads <= FEW_THREADS
        # Without the parameters shared memory has the capacity for more blocks than so many registers allow.
        return threads * vectors <= KEPT and fits and self.beside

    @property
    def resident(self) -> int:
        """Return the blocks that a multiprocessor has registers for: three slices', or two where 40 are too few."""
        light = self.thread_map.whole and not self.kept and not self.parameters * self.parameter_bytes
        slices = 3 if self.one_row or light else 2
        return self.spread * (slices if self.thread_map.threads <= 512 else 1)

    @property
    def words(self) -> list[str]:
        """Return each number in words."""
        beside = "and, for all rows, its parameters" if self.parameter_bytes else "and no parameters"
        said = [
            f"a row in {counted(self.cluster, 'block')} of one cluster, {counted(self.threads, 'thread')} each",
            f"{counted(self.thread_map.vectors, 'vector')} of {counted(self.thread_map.width, 'element')} per thread, "
            + ("held in registers during all passes" if self.kept else "read from shared memory in each pass"),
            f"{self.shared_bytes:,} bytes of shared memory per block for its part of the row {beside}",
            "each cluster takes one row and ends" if self.one_row else "clusters stay and take rows in turn",
        ]
        if self.readers > 1:
            said.append(f"{counted(self.readers, 'cluster')} read the same row and write a part of it each")
        return said


def slices_for(n2: int, width: int, itemsize: int, device: Device) -> Chosen | None:
    """Return the `Slices` of long rows; None: longer ones than LONGEST, or not with this vector, or on no such GPU.

    Slices of 32 KB: two of them, with two parameters, share a multiprocessor. Measured on an H200, n2 = 65536, as
    fractions of a copy, LayerNorm / RMSNorm, by threads and vectors a thread: bfloat16 (512, 4) 0.90 /
    0.92, (256, 8) 0.85 / 0.91, (256, 4) 0.89 / 0.93, (512, 8) 0.74 / 0.85; float32 (256, 8) 0.92 / 0.95, (512, 4) 0.84
    / 0.94, (256, 4) 0.65 / 0.91. With parameters from global memory, slices of 64 KB were best: 0.89 / 0.92, and 0.90 /
    0.93 in float32. In one run, without and with the part of the row `kept`: bfloat16 0.89 and 0.91 / 0.92 and 0.94,
    float32 0.91 and 0.93 / 0.95 and 0.94; n2 = 131072: bfloat16 0.73 and 0.84 / 0.92 and 0.94, float32 0.62 and 0.93 /
    0.85 and 0.91. Narrower vectors, LayerNorm, float32, microseconds: 1,024 rows of 65,537 took 2868 in slices of 1,024
    threads, which spilled, and 462 in pieces; of 65,535, in slices of 512, 390, and 449 in pieces, and one such row 9.0
    and 12.0; of 32,769, with almost half of the cluster idle, 367 and 237, and one 8.7 and 11.6.
    """
    if width * itemsize < 4:  # no asynchronous copy is that narrow
        return None
    if n2 > LONGEST:
        return None
    for row in SLICES.get(width, NARROW):
        columns, blocks = row.threads * row.vectors * width, 1
        while blocks < device.largest_cluster and blocks * columns < n2:
            blocks *= 2
        slices = Slices(ThreadMap(row.threads, row.vectors, width, blocks * columns == n2), blocks, itemsize)
        if blocks * columns >= n2 and slices.shared_bytes + STATIC_BYTES <= device.shared_bytes:
            return Chosen(slices, row.why)
    return None


def spread_out(slices: Slices, n1: int, parameter_bytes: int, device: Device) -> Slices:
    """Return the slices for n1 rows: where parameters lie, how many blocks a slice has, clusters a row, rows a cluster.

    Shared memory holds the parameters where a multiprocessor has room for two such blocks; or for one, if rows are few.
    (Clusters of blocks that are alone do not find room on all multiprocessors: not on an eighth.) Smaller blocks share
    few rows, as many as there are multiprocessors. A thread keeps its columns and a warp its number among the row's
    warps, so that no bit depends on n1. Multiprocessors that would be idle read a row, too. In one run, microseconds
    for one row and one, two or four readers: of 262,144 columns LayerNorm float32 10.8, 10.5, 10.1, bfloat16 9.7, 8.9,
    8.8, RMSNorm float32 8.9, 8.1, 7.7, bfloat16 7.4, 7.2, 7.0; of 131,072 LayerNorm float32 7.5, 6.9, 7.0; of 40,000
    no difference.

    With three slices a multiprocessor and a row for each cluster, more rows are on their way than with two slices and
    one row fetched ahead; but of few rows the last clusters find the GPU half empty. Fractions of a copy, RMSNorm, in
    turn and one row each, n2 = 65536: bfloat16 264 rows 0.956, 0.934, 528 0.961, 0.943, 792 0.929, 0.954, 2,048 0.932,
    0.973; float32 132 rows 0.954, 0.968, 264 0.953, 0.957, 2,048 0.937, 0.988; three slices and rows in turn: 0.919.
    n2 = 131072: bfloat16 264 rows 0.902, 0.914, 1,024 0.919, 0.963; float32 66 rows 0.892, 0.931. MANY lies between: at
    528 rows of bfloat16 it is too low, for longer ones too high.
    """
    processors = device.multiprocessors
    held = slices._replace(parameter_bytes=parameter_bytes)
    neighbours = 1 if 8 * n1 * slices.blocks <= 7 * processors else 2
    fit = neighbours * (held.shared_bytes + STATIC_BYTES) <= device.shared_bytes
    if slices.thread_map.width * parameter_bytes < 4 or not fit:
        return slices
    most = min(processors // n1, device.largest_cluster)
    while 2 * held.cluster <= most and held.threads >= 2 * SMALLEST_BLOCK:
        held = held._replace(spread=2 * held.spread)
    while 2 * held.readers <= held.thread_map.vectors and 8 * n1 * held.cluster * 2 * held.readers <= 7 * processors:
        held = held._replace(readers=2 * held.readers)
    many = n1 * held.blocks >= MANY * processors
    return held._replace(one_row=many and held.kept and held.parameters < 2)
