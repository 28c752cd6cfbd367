"""Lay out rows for the fast forward steps: in registers, several rows per block (step 6), or in a cluster (step 7).

What a row's bits depend on is chosen without n1, so a row has the same bits in every batch.
"""

import math
from typing import NamedTuple

from normlab.kernels.forward.early import pays
from normlab.kernels.forward.tables import BESIDE, EDGES, NARROW, NARROWER, SAMPLED, SLICES, TABLES, Candidate, Slice
from normlab.kernels.plan import Chosen, Device
from normlab.kernels.words import counted
from normlab.stages.shifted import ShiftedMap
from normlab.stages.vector import BYTES, WARP, ThreadMap, map_threads, whole_warps


class RegisterLayout(NamedTuple):
    """What the kernel of step 6 is built for: rows that a block's registers hold.

    thread_map: the thread map of one row. rows: rows per block. resident: how many blocks a multiprocessor must have
    registers for, at least. shifted: None if every row begins and ends between two vectors. early: do the
    parameters come beside the rows, before the sums?
    """

    thread_map: ThreadMap
    rows: int
    resident: int = 1
    shifted: ShiftedMap | None = None
    early: bool = False

    @property
    def words(self) -> list[str]:
        """Return each number in words."""
        threads, vectors, width, _ = self.thread_map
        said = [
            f"{counted(self.rows, 'row')} per block, {counted(threads, 'thread')} each",
            f"{counted(vectors, 'vector')} of {counted(width, 'element')} per thread, in registers",
            f"compiled so that a multiprocessor holds at least {counted(self.resident, 'block')}",
        ]
        if self.shifted:
            said.append("a row may begin in the middle of a vector: threads have whole vectors of memory")
            said.append(
                f"all rows of a block begin alike: it shifts the parameters once, for up to {SHIFTED_TURNS} turns"
            )
        if self.early:
            kept = "the block's shared memory" if self.shifted else "registers"
            said.append(f"the parameters come to {kept} beside the rows: one wait for both")
        return said


# Rows that a row group takes, at most, where rows may begin in the middle of a vector. LayerNorm of 5,001 bfloat16
# columns, as a fraction of a copy: 0.71; one row: 0.59; 32: 0.69 (H200).
SHIFTED_TURNS = 8
MAX_THREADS = 1024
LEAST_THREADS = 128  # per block: rows of up to half as many share one
# Vectors per lane, at most, to leave fewer lanes idle; fewer on fewer than SHORTEST lanes, which would read far apart.
MOST_VECTORS, SHORTEST = 5, 4
# Per thread, in a block of up to so many threads, which share 65,536 registers.
MAX_ELEMENTS = {128: 128, 512: 64, 1024: 32}


def rows_for(
    n2: int, width: int, itemsize: int, rms: bool, beside: bool = False, sampled: bool = False
) -> Chosen | None:
    """Return the `RegisterLayout` for n2 columns and why it is taken; None: a block's registers do not hold the row.

    width: elements per vector. itemsize: of the widest array. beside: a residual or a gate comes with each row.
    sampled: parameters are a row per sample.
    """
    count = -(-n2 // width)  # vectors of the row
    otherwise = Candidate(n2, 1, "a block's registers, as far as they go; not measured", threads=MAX_THREADS)
    # The table's columns are those of vectors of 16 bytes: count * (BYTES // itemsize). Both sides are times width.
    columns_times_width = n2 * (BYTES // itemsize)
    plain = not (beside or sampled)
    first = SAMPLED if sampled else BESIDE if beside else {}
    narrow = NARROWER[itemsize, rms] if width < BYTES // itemsize and plain else ()
    candidates = *narrow, *first.get(itemsize, ()), *TABLES[itemsize, rms]
    longer = (row for row in candidates if columns_times_width <= row.columns_up_to * width)
    chosen = next((row for row in longer if not (plain and row.whole) or fills(row, count)), otherwise)
    thread_map = map_threads(n2, width, chosen.threads or whole_warps(-(-count // chosen.vectors)))
    if thread_map.threads <= WARP:
        thread_map = with_fewest_lanes_idle(thread_map, n2)
    rows = max(chosen.rows, LEAST_THREADS // thread_map.threads)
    # A thread has 65,536 / threads registers: 64 elements of 512 threads leave as many for addresses and sums.
    threads = thread_map.threads * rows
    largest = min(limit for limit in MAX_ELEMENTS if limit >= threads)
    if thread_map.elements > MAX_ELEMENTS[largest]:
        return None
    early = chosen.early and plain and pays(n2, thread_map, rms)
    # A row and its residual take twice the registers until they are added, and so do a row and its gate: no limit.
    limit = None if beside else chosen.resident_threads
    resident = 1 if limit is None else max(1, limit // threads)
    return Chosen(RegisterLayout(thread_map, rows, resident, early=early), chosen.why)


def fills(row: Candidate, count: int) -> bool:
    """Return True if `count` vectors are as many as the candidate's whole warps hold."""
    return count % (WARP * row.vectors) == 0


def with_fewest_lanes_idle(thread_map: ThreadMap, n2: int) -> ThreadMap:
    """Return the thread map of a row of at most a warp with half the lanes, and again half, while fewer have no vector.

    520 columns of bfloat16 are 65 vectors. On 32 lanes with three each they reach 0.85 / 0.88 of a copy (LayerNorm /
    RMSNorm, H200), on 16 lanes with five 1.00 / 1.00. Eight columns on four lanes: 0.25 / 0.39, on one: 0.78 / 0.89.
    40 columns on one lane with five 0.48 / 0.44, on two lanes with three 0.87 / 0.84 (H100).
    """
    half = map_threads(n2, thread_map.width, max(1, thread_map.threads // 2))
    few = half.vectors < MOST_VECTORS or (half.vectors == MOST_VECTORS and half.threads >= SHORTEST)
    if half.columns < thread_map.columns and few:
        return with_fewest_lanes_idle(half, n2)
    return thread_map


# Columns of rows that begin in the middle of a vector, by bytes of the widest element and whether the norm is RMSNorm.
# Fractions of a copy on an H100, in a cluster and in step 6: bfloat16 LayerNorm 0.90 / 0.96 at 6,901 columns, 0.88 /
# 0.85 at 7,001, where a multiprocessor has room for three rows instead of four; float32 LayerNorm 0.88 / 0.91 at 9,217,
# 0.87 / 0.84 at 12,001, RMSNorm 0.93 / 0.91 at 14,001. Bfloat16 RMSNorm reaches 0.98 at 10,001 columns in step 6, and
# 0.94 at 14,001 in a cluster.
EDGES_FROM = {(2, False): 6906, (2, True): 12288, (4, False): 10240, (4, True): 13000}
EDGES_WHY = (
    "rows that begin in the middle of a vector: 0.88 / 0.92 of a copy at 33001 columns of bfloat16 (LayerNorm / "
    "RMSNorm) on an H100, 0.90 / 0.93 of float32; in pieces 0.18 / 0.25 and 0.41 / 0.75 at 50257 on an H200"
)
# Columns, in vectors of 16 bytes. 20,480 of bfloat16: 0.95 / 0.97 of a copy by clusters, 0.79 / 0.93 by blocks (H100).
BLOCK_UP_TO = 2**14
EDGES_BEYOND, EDGES_BLOCKS = 2**17, 8  # columns beyond which `tables.EDGES` holds a row, and its blocks at most
STATIC_BYTES = 2448  # of shared memory, at most: the exchange buffer, and the sums gathered from other blocks
SHARED_BYTES = 227 * 1024  # that the blocks of a multiprocessor share, or one has alone, on GPUs with clusters
SPLIT_FROM = 2**15  # columns: a block's registers hold as many, whatever the alignment
LONGEST = 2**18  # columns: a cluster might hold more, but is alone on its multiprocessors (see `split_rows`)
FEW_THREADS = 256  # per block, at most: two such blocks leave each thread 128 registers, three 80
# Words of a row per thread, at most, that registers hold for all passes: in two such blocks eight vectors of 16 bytes,
# in three as many as do not spill.
WORDS_OF_TWO_BLOCKS, WORDS_OF_THREE_BLOCKS = 32, 28
# Of 16 bits in rows that begin in the middle of a vector. 65,537 columns of bfloat16: 0.88, with two blocks 0.72
# (LayerNorm, H100).
WORDS_OF_THREE_ANYWHERE = 24
# Slices per multiprocessor, of all rows together, from which on a cluster takes one row and ends (more than five times
# as many as a multiprocessor holds at once), and from which on it takes rows of one place in a vector (several each).
ONE_ROW_FROM, ALIKE_FROM = 16, 12
# Blocks per row, at most, by the places at which rows begin: of more blocks too few clusters are a multiple of them.
ALIKE_BLOCKS = {1: 16, 2: 16, 4: 8, 8: 2}
# Vectors per thread, in place of MANY_VECTORS or more, where a LayerNorm of 16 bits cuts the parameters out for every
# row. More warps then hide what each waits for. 57,001 columns of bfloat16: 0.89 of a copy, with seven 0.85 (H100).
CUT_VECTORS, MANY_VECTORS = 5, 7
SMALLEST_BLOCK = 64  # threads; smaller blocks lose more by waiting for each other than they gain


class ClusterLayout(NamedTuple):
    """What the kernel of step 7 is built for: rows that the shared memory of a cluster's blocks holds.

    A row's bits depend on thread_map, blocks, itemsize and anywhere. `parameters` is the call's, and `spread_out`
    chooses the others by the number of rows.

    Attributes:
        thread_map: the thread map of a slice, which is one of `blocks` equal parts of the row.
        blocks: slices per row.
        itemsize: bytes per element of x.
        spread: blocks that share a slice. A block then has a part of every span of its slice.
        parameter_bytes: bytes per element of weight and bias if shared memory holds them, too; 0 if the threads load
            them from global memory for every row.
        parameters: how many of weight and bias there are: 0, 1 or 2.
        readers: clusters that read the same row. Reader r writes a thread's vectors r, r + readers, ….
        one_row: True if a cluster takes one row and ends, so that the GPU starts the next cluster in its place; False
            if it takes one row after another.
        anywhere: True if rows begin in the middle of a vector (`clusters.edges`).
        alike: True if a cluster takes such rows of one place in a vector only, and holds the parameters shifted.
        kept: True if a thread's registers hold its part of the row. Kernels are remembered by their layout, so what
            they are built for is a field, not worked out from limits above.
    """

    thread_map: ThreadMap
    blocks: int
    itemsize: int
    spread: int = 1
    parameter_bytes: int = 0
    parameters: int = 2
    readers: int = 1
    one_row: bool = False
    anywhere: bool = False
    alike: bool = False
    kept: bool = False

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
    def block_span(self) -> int:
        """Return the columns of each span that one block has: a thread's vectors lie so far apart in shared memory."""
        return self.thread_map.span // self.spread

    @property
    def held_columns(self) -> int:
        """Return the columns of a row in a block's shared memory."""
        return self.thread_map.columns // self.spread

    @property
    def cut(self) -> bool:
        """Return True if a thread cuts the parameters of its columns out of two vectors."""
        return self.anywhere and not self.alike

    @property
    def parameter_stride(self) -> int:
        """Return the elements from one span's parameters in a block's shared memory to the next span's."""
        return self.block_span + (self.thread_map.width if self.cut else 0)

    @property
    def parameter_columns(self) -> int:
        """Return the elements of a parameter in a block's shared memory."""
        return self.thread_map.vectors * self.parameter_stride

    @property
    def parameters_held(self) -> bool:
        """Return True if shared memory holds the parameters, too."""
        return self.parameter_bytes > 0

    @property
    def shared_bytes(self) -> int:
        """Return the dynamic shared memory per block: its parts of the row, and of weight and bias."""
        parameters = self.parameters * self.parameter_columns * self.parameter_bytes
        return self.held_columns * self.itemsize + parameters

    @property
    def words_per_thread(self) -> int:
        """Return the words of 32 bits of a thread's part of the row, as it lies in memory."""
        return self.thread_map.elements * self.itemsize // 4

    @property
    def resident_slices(self) -> int:
        """Return the slices that a multiprocessor has registers and shared memory for."""
        threads, fit = self.thread_map.threads, SHARED_BYTES // (self.spread * self.shared_bytes + STATIC_BYTES)
        words = WORDS_OF_THREE_BLOCKS if self.itemsize == 4 or not self.anywhere else WORDS_OF_THREE_ANYWHERE
        most = 3 if self.one_row or (self.words_per_thread <= words and not self.alike) else 2
        return max(1, min(fit, most if threads <= FEW_THREADS else MAX_THREADS // threads))

    @property
    def fits_registers(self) -> bool:
        """Return True if a thread's registers have room for its part of the row."""
        threads = self.thread_map.threads * self.resident_slices
        most = WORDS_OF_TWO_BLOCKS if threads <= 2 * FEW_THREADS else WORDS_OF_THREE_BLOCKS
        return threads <= 3 * FEW_THREADS and self.words_per_thread <= most

    @property
    def resident(self) -> int:
        """Return the blocks that a multiprocessor has registers and shared memory for."""
        return self.spread * self.resident_slices

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
        if self.anywhere:
            said.append("a row may begin in the middle of a vector: threads have whole vectors of memory")
        if self.alike:
            said.append("a cluster takes rows that begin at one place in a vector, and holds the parameters shifted")
        elif self.cut and self.parameters:
            said.append("each thread cuts the parameters of its columns out of two vectors")
        if self.readers > 1:
            said.append(f"{counted(self.readers, 'cluster')} read the same row and write a part of it each")
        return said


def slices_for(
    n2: int, width: int, itemsize: int, device: Device, first: tuple[Slice, ...] = (), longest: int = LONGEST
) -> Chosen | None:
    """Return the `ClusterLayout` of long rows for one block per slice, and why it is taken; `spread_out` does the rest.

    Return None if the row has more than `longest` columns, if a vector is too narrow for an asynchronous copy, or if no
    cluster of this GPU holds the row. width: elements per vector. itemsize: bytes per element of x. first: slices
    to try before the tables'.
    """
    if width * itemsize < 4 or n2 > longest:  # no asynchronous copy is narrower than four bytes
        return None
    # Slices of 32 KB come first: with two parameters, two of them share a multiprocessor.
    # With vectors of one element the cluster is 1.2 times as fast as pieces (`split_rows`): 390 us and 449 for 1,024
    # rows of 65,535 float32. Where the row leaves almost half of the cluster idle it is slower, 367 us and 237 at
    # 32,769 columns; it is taken there too, because one such row takes 8.7 us and in pieces 11.6.
    for row in (*first, *SLICES.get(width, NARROW)):
        columns, blocks = row.threads * row.vectors * width, 1
        # as few blocks as hold the row, a power of two: more would only have more to wait for
        while blocks < device.largest_cluster and blocks * columns < n2:
            blocks *= 2
        # a block of 1,024 threads keeps its full slice: registers have no room for a second block, however short
        shared = n2 if row.threads < MAX_THREADS else blocks * columns
        thread_map = map_threads(-(-shared // blocks), width, row.threads)
        layout = ClusterLayout(thread_map._replace(whole=blocks * thread_map.columns == n2), blocks, itemsize)
        if blocks * columns >= n2 and layout.shared_bytes + STATIC_BYTES <= device.shared_bytes:
            return Chosen(layout, row.why)
    return None


def edges_for(n2: int, width: int, itemsize: int, device: Device, rms: bool) -> Chosen | None:
    """Return the `ClusterLayout` of rows that begin anywhere, and why it is taken.

    It has columns for all vectors that a row may touch.

    width: elements of a vector of 16 bytes. Otherwise as `slices_for`.
    """
    touched = -(-(n2 + width - 1) // width) * width
    columns = EDGES.threads * EDGES.vectors * width  # of a block
    beyond = rms and width == BYTES // 2 and EDGES_BEYOND < touched <= EDGES_BLOCKS * columns
    chosen = slices_for(touched, width, itemsize, device, (EDGES,) if beyond else (), LONGEST + width)
    if chosen is None:
        return None
    layout, thread_map = chosen.layout, chosen.layout.thread_map
    if layout.blocks > 1:
        # As few warps as hold a slice with as many vectors each: then most warps have no vector past the row's end, and
        # take no conditions. LayerNorm of bfloat16, 33,001 columns, with 256 threads and with 224: 0.77 and 0.81 of a
        # copy, and eight such rows 9.1 and 7.7 us (H100). A single block loses by it: 4,601 columns, 0.91 and 0.88.
        count, vectors = -(-touched // (layout.blocks * width)), thread_map.vectors
        cut = not rms and width == BYTES // 2 and layout.blocks > ALIKE_BLOCKS[places_of(n2, width)]
        if cut and vectors >= MANY_VECTORS:
            vectors = CUT_VECTORS
        thread_map = thread_map._replace(vectors=vectors, threads=whole_warps(-(-count // vectors)))
    return Chosen(layout._replace(thread_map=thread_map._replace(whole=False), anywhere=True), EDGES_WHY)


def places_of(n2: int, width: int) -> int:
    """Return at how many places in a vector rows of n2 columns begin, one after another."""
    return width // math.gcd(n2, width)


def clusters_for(n1: int, layout: ClusterLayout, resident: int, places: int) -> int:
    """Return how many clusters take n1 rows. resident: clusters that the GPU holds at a time. places: `places_of`."""
    if n1 <= resident or not layout.alike:
        return max(1, min(n1, resident))
    # A cluster's rows lie `clusters` apart, so they begin at one place if that is a multiple of the places. Where fewer
    # clusters than places fit, each cluster takes one row.
    return resident - resident % places or n1


def spread_out(layout: ClusterLayout, n1: int, parameter_bytes: int, device: Device, places: int = 1) -> ClusterLayout:
    """Return the layout for n1 rows, with all that may depend on their number chosen for them.

    A thread keeps its columns and a warp its number among the row's warps, so no bit depends on n1.
    parameter_bytes: bytes per element of weight and bias. places: `places_of`.
    """
    processors = device.multiprocessors
    # Shared memory holds the parameters even if a block is then alone on its multiprocessor: 224,160 columns of float32
    # reach 0.82 / 0.96 of a copy, with parameters from global memory 0.66 / 0.80 (LayerNorm / RMSNorm, H100).
    held = layout._replace(parameter_bytes=parameter_bytes)
    fit = held.shared_bytes + STATIC_BYTES <= device.shared_bytes
    if layout.thread_map.width * parameter_bytes < 4 or not fit:
        return layout
    # Few rows are divided among smaller blocks, up to as many as there are multiprocessors.
    most = min(processors // n1, device.largest_cluster)
    while 2 * held.cluster <= most and held.threads >= 2 * SMALLEST_BLOCK and held.warps % 2 == 0:
        held = held._replace(spread=2 * held.spread)
    # Multiprocessors that would be idle read a row, too. One row of 262,144 columns with one, two and four readers:
    # LayerNorm float32 10.8, 10.5 and 10.1 us, bfloat16 9.7, 8.9 and 8.8 us, RMSNorm float32 8.9, 8.1 and 7.7 us. One
    # of 40,000 columns takes the same time.
    while 2 * held.readers <= held.thread_map.vectors and 8 * n1 * held.cluster * 2 * held.readers <= 7 * processors:
        held = held._replace(readers=2 * held.readers)
    # With three slices per multiprocessor and one row per cluster, more rows are on their way than with two slices and
    # one row fetched ahead. Of few rows, however, the last clusters find the GPU half empty. RMSNorm, n2 = 65536,
    # fractions of a copy, rows in turn and one row each:
    #     bfloat16   264 rows 0.956, 0.934   528 rows 0.961, 0.943   792 rows 0.929, 0.954   2,048 rows 0.932, 0.973
    #     float32    132 rows 0.954, 0.968   264 rows 0.953, 0.957                           2,048 rows 0.937, 0.988
    # ONE_ROW_FROM is a compromise: of 528 rows of bfloat16 it changes to one row too early, of longer rows too late.
    many = n1 * held.blocks >= ONE_ROW_FROM * processors
    one_row = many and held.thread_map.threads <= FEW_THREADS and held.parameters < (1 if held.anywhere else 2)
    # Cut out of two vectors, two parameters of 16 bits take more instructions than all else of a LayerNorm.
    both = held.anywhere and held.parameters == 2 and held.thread_map.width == BYTES // 2
    alike = both and held.blocks <= ALIKE_BLOCKS[places] and n1 * held.blocks >= ALIKE_FROM * processors
    held = held._replace(one_row=one_row, alike=alike)
    return held._replace(kept=held.fits_registers)
