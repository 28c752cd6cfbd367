"""Lay out rows for the pipelined backward: which threads, how many rows per block, how many pipeline stages."""

import itertools
import math

from normlab.kernels.backward.first_tables import edges_for, first_for
from normlab.kernels.backward.pipelined.kind import Kind
from normlab.kernels.backward.pipelined.layout import PipelineLayout
from normlab.kernels.backward.tables import Candidate, table_for
from normlab.kernels.halves import BACKWARD, whole_vectors_pay
from normlab.kernels.plan import CLUSTERS_FROM, Chosen, Device
from normlab.stages.vector import BYTES, WARP, map_threads, whole_warps

MAX_ELEMENTS = 40  # per thread: two sums of each stay in registers from the first row to the last
EDGES_FROM = {2: 65, 4: 128}  # columns, by bytes per element: shorter rows have few vectors between their ends


def alignments_for(n2: int, sizes: tuple[int, int, int], biased: bool, memory_efficient: bool) -> int:
    """Return at how many offsets within a vector of 16 bytes rows begin that are worth the work of `edges`; else 1."""
    full = BYTES // max(sizes)
    alignments = full // math.gcd(n2, full)
    if alignments == 2:
        pay = whole_vectors_pay(n2, BACKWARD[max(sizes), biased, memory_efficient])
    else:
        pay = n2 >= EDGES_FROM[max(sizes)]
    return alignments if pay else 1


def touched_columns(n2: int, width: int, alignments: int) -> int:
    """Return the columns of all vectors that a row touches which begins as late in a vector as any."""
    return -(-(n2 + width - width // alignments) // width) * width


def layout_for(
    n2: int,
    width: int,
    sizes: tuple[int, int, int],
    kind: Kind,
    device: Device,
    alignments: int = 1,
    third_bytes: int = 0,
) -> Chosen | None:
    """Return the `PipelineLayout` for a kind and vectors of `width` elements; None if the kernel does not do such rows.

    sizes: bytes of an element of the saved array, of grad_output and of grad_input. alignments: as in the layout; more
    than 1 go with vectors of 16 bytes. third_bytes: of the third array (`pipelined.layout`), 0 without one.
    """
    if alignments > 1:
        n2 = touched_columns(n2, width, alignments)
    # n1 is no argument: a row's bits are the same in every batch
    saved_bytes, grad_bytes, _ = sizes
    if width * min(saved_bytes, grad_bytes) < 4:  # no asynchronous copy is that narrow
        return None
    full = BYTES // max(sizes)  # elements of the vectors in which the tables count columns
    first = first_for(max(sizes), kind, third_bytes > 0, alignments)
    for row in (*first, *table_for(min(sizes), max(sizes), kind)):
        if not row.columns_from * width <= n2 * full <= row.columns_up_to * width:
            continue
        if row.columns_per_block and device.capability < CLUSTERS_FROM:
            continue
        # The first row of the table that fits the GPU's shared memory: the tables list the fastest first.
        for plain in _fewer(row, n2, width, full, saved_bytes, grad_bytes):
            layout = plain._replace(third_bytes=third_bytes)
            if alignments > 1:
                some = layout.thread_map._replace(whole=False)
                layout = layout._replace(thread_map=some, alignments=alignments)
            shared_bytes = layout.shared_bytes(kind.parameter_bytes) + layout.exchange_bytes
            if layout.thread_map.elements <= MAX_ELEMENTS and shared_bytes <= device.shared_bytes:
                if alignments == 1:
                    return Chosen(layout, row.why)
                how = "" if row in edges_for(max(sizes), kind) else ", laid out as aligned rows are"
                return Chosen(layout, f"rows that begin in the middle of a vector{how}: {row.why}")
    return None


def _fewer(row: Candidate, n2: int, width: int, full: int, saved_bytes: int, grad_bytes: int) -> list[PipelineLayout]:
    """Return the layouts of a table's row, then smaller ones: with fewer rows per block, then with fewer stages.

    The stages of the table's own layout may be larger than a block's shared memory.
    """
    count = -(-n2 // width)  # vectors of the row
    blocks = 1
    # as few blocks as hold a row, a power of two: each waits for the slowest
    if row.columns_per_block is not None:
        blocks = 1 << (-(-count * full // row.columns_per_block) - 1).bit_length()
    share = -(-count // blocks)  # each block has as many vectors as the others, if the row can be divided so
    thread_map = map_threads(share * width, width, row.threads or whole_warps(-(-share // row.vectors)))
    thread_map = thread_map._replace(whole=blocks * thread_map.columns == n2)
    # all lanes of a warp shuffle, so a block is whole warps
    some = [rows for rows in range(row.rows, 0, -1) if rows * thread_map.threads % WARP == 0]
    ways = [(rows, row.stages, row.prefetch) for rows in some] + [(some[-1], 2, 0)]
    if blocks > 1:  # no stage to fetch ahead into, but an earlier step reads a row as long as that again and again
        ways.append((1, 1, 0))
    return [
        PipelineLayout(thread_map, rows, blocks, stages, prefetch, saved_bytes, grad_bytes)
        for rows, stages, prefetch in ways
    ]


_ALL = [
    Kind(False, memory_efficient, weighted, biased, narrow, 1, float16)
    for memory_efficient, weighted, biased, narrow, float16 in itertools.product((False, True), repeat=5)
    if memory_efficient or not float16
]
KINDS = list({(kind.memory_efficient, kind.biased, kind.float16, kind.parameter_bytes): kind for kind in _ALL}.values())
"""The kinds, as far as layouts differ."""
