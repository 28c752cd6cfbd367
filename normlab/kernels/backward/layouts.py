"""How rows are laid out for the pipelined backward: which threads, how many rows a block, which stages.

Tables of what was fastest, by the form of the gradient and the length of the row; `layout_for` takes the first entry
that a GPU has room for.
"""

import itertools
from typing import NamedTuple

from normlab.engine import block_shared_bytes
from normlab.kernels.backward.kind import Kind
from normlab.kernels.backward.ring import Layout
from normlab.stages.vector import WARP, dealt, whole_warps

CLUSTERS_FROM = (9, 0)  # compute capability


class Entry(NamedTuple):
    """For rows of up to `limit` vectors. slice: the most vectors of a block, of which as few as hold a row make a
    cluster (0: all of the row's). threads: of a row in a block (0: a quarter of the vectors; fewer than 32: lanes of a
    warp). rows: of a block.
    """

    limit: int
    slice: int
    threads: int
    rows: int
    stages: int
    lag: int


# Measured on an H200 with all parameters as the bench does (cold L2), as fractions of a copy, to choose among layouts;
# what the kernels reach is in the records (README).
# 16 bits, eight elements a vector. Tried, too: teams that wait for themselves alone at an mbarrier each, which could do
# it in clusters as well: 0.82 where `team_sync` gives 0.93 (4096), and 0.79 for 0.85 (16384).
LONGEST = Entry(32768, 2048, 512, 1, 2, 0)
MIDDLE = Entry(768, 0, 0, 2, 3, 1)
WITHOUT_BIAS = (  # RMSNorm, or LayerNorm without a bias: saved / recomputed
    Entry(8, 0, 8, 32, 3, 0),  # 64: 0.94 / 0.95
    Entry(16, 0, 16, 32, 2, 0),  # 128: 0.97 / 0.97
    Entry(32, 0, 32, 8, 3, 0),  # 256: 0.96 / 0.98; 16 lanes: 0.95 / 0.95
    Entry(64, 0, 32, 8, 4, 0),  # 384: 0.98 / 0.98; 16 lanes: 0.97 / 0.97
    Entry(96, 0, 64, 4, 4, 0),  # 768: 0.98 / 0.98; 32 threads: 0.98 / 0.96
    Entry(128, 0, 64, 8, 3, 0),  # 1024: 0.96 / 0.96; a lag of 1: 0.96 / 0.95
    Entry(256, 0, 128, 4, 3, 1),  # 2048: 0.98 / 0.97; 64 threads: 0.98 / 0.96
    Entry(512, 0, 0, 2, 4, 1),  # 4096: 0.96 / 0.96; three stages: 0.95 / 0.94
    MIDDLE,  # 5120: 0.96 / -
    Entry(1024, 512, 128, 4, 3, 1),  # 8192: 0.97 / 0.96; by one block: 0.96 / 0.95
    Entry(1024, 0, 0, 1, 3, 1),
)
SAVED = (
    *WITHOUT_BIAS,
    Entry(4096, 512, 128, 4, 3, 1),  # 16384: 0.97; by half as many blocks: 0.94
    Entry(16384, 1024, 256, 2, 3, 1),  # 65536: 0.97; no lag: 0.89
    LONGEST,
)
RECOMPUTED = (
    *WITHOUT_BIAS,
    Entry(4096, 512, 128, 4, 2, 0),  # 16384: 0.98; a lag of 1: 0.96
    Entry(16384, 1024, 256, 2, 2, 0),  # 65536: 0.96; a lag of 1: 0.93
    LONGEST,
)
SAVED_WITH_BIAS = (
    Entry(8, 0, 8, 32, 3, 1),  # 64: 0.90; no lag: 0.86; 4 lanes: 0.85
    Entry(16, 0, 16, 16, 3, 1),  # 128: 0.92; no lag: 0.89
    Entry(32, 0, 16, 32, 5, 1),  # 256: 0.92; a whole warp: 0.91
    Entry(48, 0, 16, 16, 2, 0),  # 384: 0.96; a lag of 1: 0.94
    Entry(96, 0, 32, 8, 2, 0),  # 768: 0.96; a lag of 1: 0.95
    Entry(128, 0, 64, 8, 3, 1),  # 1024: 0.95; no lag: 0.87
    Entry(256, 0, 128, 4, 3, 1),  # 2048: 0.97; 64 threads: 0.96
    Entry(512, 0, 0, 2, 4, 1),  # 4096: 0.97; three stages: 0.96
    MIDDLE,  # 5120: 0.94; 128 threads: 0.93
    Entry(1024, 0, 512, 1, 3, 1),  # 8192: 0.96; by two blocks: 0.90
    Entry(16384, 1024, 256, 2, 3, 1),  # 16384: 0.94, 65536: 0.85; by twice as many blocks: 0.86, -
    LONGEST,
)


def recomputed_with_bias(longest_of_a_block: Entry) -> tuple[Entry, ...]:
    """bfloat16 / float16: rows of about 8192 differ, for widening a float16 is work for the pipe that multiplies."""
    return (
        Entry(8, 0, 8, 32, 3, 0),  # 64: 0.87; a lag of 1: 0.84
        Entry(16, 0, 8, 32, 3, 1),  # 128: 0.90; no lag: 0.89
        Entry(32, 0, 16, 16, 3, 0),  # 256: 0.92; a lag of 1: 0.92
        Entry(48, 0, 16, 16, 2, 0),  # 384: 0.95; a lag of 1: 0.92
        Entry(96, 0, 32, 8, 2, 0),  # 768: 0.97; a lag of 1: 0.93
        Entry(128, 0, 64, 8, 3, 1),  # 1024: 0.94; no lag: 0.93
        Entry(256, 0, 128, 4, 3, 1),  # 2048: 0.96; 64 threads: 0.95
        Entry(384, 0, 0, 2, 3, 1),
        Entry(512, 0, 256, 2, 4, 1),  # 4096: 0.97 / 0.95; 128 threads: 0.94 / 0.92
        Entry(640, 0, 128, 2, 3, 1),  # 5120: 0.94 / 0.94; 160 threads: 0.95 / 0.93
        MIDDLE,
        longest_of_a_block,
        Entry(2048, 0, 512, 1, 2, 0),  # 16384: 0.93 / 0.94; by two blocks: 0.95 / 0.91
        LONGEST,  # 65536: 0.85 / 0.81; 256 threads, two rows: 0.83 / 0.79
        Entry(1024, 0, 0, 2, 2, 0),  # widened, as what follows
        Entry(16384, 1024, 256, 2, 2, 0),
    )


RECOMPUTED_WITH_BIAS = recomputed_with_bias(Entry(1024, 0, 512, 1, 3, 1))  # 8192: 0.96 / 0.93
RECOMPUTED_FLOAT16_WITH_BIAS = recomputed_with_bias(Entry(1024, 0, 256, 2, 2, 0))  # 8192: 0.92 / 0.95

# 32 bits, four elements a vector. LayerNorm / RMSNorm:
SINGLES = (
    Entry(16, 0, 16, 32, 3, 0),  # 64: 0.99 / 1.01
    Entry(32, 0, 16, 32, 3, 0),  # 128: 0.98 / 1.01
    Entry(64, 0, 32, 16, 3, 0),  # 256: 0.99 / 1.01
    Entry(96, 0, 32, 8, 4, 1),  # 384: 0.99 / 1.01
    Entry(192, 0, 64, 4, 3, 1),  # 768: 0.99 / 1.00
    Entry(256, 0, 64, 3, 3, 1),  # 1024: 0.99 / 1.01; four rows, no lag: 0.93 / 0.93
    Entry(512, 0, 160, 2, 3, 1),  # 2048: 1.01 / 1.00; 128 threads: 0.98 / 0.99
    Entry(1024, 0, 256, 1, 3, 0),  # 4096: 1.00 / 1.00; a lag of 1: 0.98 / 0.98
)
LONG_SINGLES = (
    Entry(2048, 0, 256, 1, 3, 0),  # where there are no clusters
    Entry(32768, 2048, 256, 1, 3, 1),  # 65536: 0.98 / 1.00; recomputing, 16384: 0.98, 65536: 0.99
    Entry(65536, 4096, 512, 1, 1, 0),
)
SAVED_SINGLES = (
    *SINGLES,
    Entry(1280, 0, 0, 1, 3, 1),  # 5120: 0.98 / 0.99; half as many threads, two rows: 0.94 / 0.97
    Entry(2048, 1024, 512, 2, 3, 1),  # 8192: 1.02 / 0.99; by one block: 0.97 / 0.96
    Entry(4096, 1024, 256, 2, 3, 1),  # 16384: 1.00 / 1.01; by two blocks: 0.99 / 0.99
    *LONG_SINGLES,
)
RECOMPUTED_SINGLES = (
    *SINGLES,
    Entry(1280, 0, 0, 1, 3, 0),  # 5120: - / 1.01; a lag of 1: - / 0.98
    Entry(2048, 512, 128, 4, 3, 1),  # 8192: - / 1.02; by one block: - / 0.99
    Entry(4096, 1024, 256, 2, 3, 1),  # 16384: - / 1.01; by two blocks: - / 0.98
    *LONG_SINGLES,
)
RECOMPUTED_MIXED_WITH_BIAS = (*SINGLES, Entry(1280, 0, 0, 1, 3, 0), *LONG_SINGLES)
RECOMPUTED_SINGLES_WITH_BIAS = (
    *SINGLES,
    Entry(1280, 0, 0, 1, 3, 0),  # 5120: 1.01; a lag of 1: 0.97
    Entry(2048, 512, 256, 4, 2, 0),  # 8192: 1.00; by one block: 0.97. 1024 threads, whose registers mixed dtypes exceed
    *LONG_SINGLES,
)
MAX_ELEMENTS = 40  # of a thread: the columns' sums, in registers


def table_for(narrowest: int, widest: int, kind: Kind) -> tuple[Entry, ...]:
    """The entries for arrays whose elements have so many bytes."""
    if not kind.memory_efficient:
        if widest == 4:
            return SAVED_SINGLES
        return SAVED_WITH_BIAS if kind.biased else SAVED
    if not kind.biased:
        return RECOMPUTED_SINGLES if widest == 4 else RECOMPUTED
    if widest == 4:
        return RECOMPUTED_SINGLES_WITH_BIAS if narrowest == 4 else RECOMPUTED_MIXED_WITH_BIAS
    return RECOMPUTED_FLOAT16_WITH_BIAS if kind.float16 else RECOMPUTED_WITH_BIAS


def layout_for(
    n2: int,
    width: int,
    saved_bytes: int,
    grad_bytes: int,
    input_bytes: int,
    kind: Kind,
    capability: tuple[int, int],
) -> Layout | None:
    """How the work of a kind is laid out, for vectors of `width` elements.

    The bytes are those of an element of the saved array, of grad_output and of grad_input.

    None: the kernel does not do it. Depends on no n1, so that a row's bits are the same in every batch.
    """
    if width * min(saved_bytes, grad_bytes) < 4:  # no asynchronous copy is that narrow
        return None
    room = block_shared_bytes(capability)
    sizes = saved_bytes, grad_bytes, input_bytes
    for entry in table_for(min(sizes), max(sizes), kind):
        if entry.limit * width < n2 or (entry.slice and capability < CLUSTERS_FROM):
            continue
        for layout in _fewer(entry, n2, width, saved_bytes, grad_bytes):
            shared_bytes = layout.shared_bytes(kind.parameter_bytes) + layout.board_bytes
            if layout.deal.elements <= MAX_ELEMENTS and shared_bytes <= room:
                return layout
    return None


def _fewer(entry: Entry, n2: int, width: int, saved_bytes: int, grad_bytes: int) -> list[Layout]:
    """Layouts after an entry, for a ring that may be too large for a block: with fewer rows, then with fewer stages.

    A cluster has a power of two of blocks, as few as hold a row, and each has as much of it as the others, if it can.
    """
    count = -(-n2 // width)
    blocks = 1 << (-(-count // entry.slice) - 1).bit_length() if entry.slice else 1
    share = -(-count // blocks)
    deal = dealt(share * width, width, entry.threads or whole_warps(-(-share // 4)))
    deal = deal._replace(whole=blocks * deal.columns == n2)
    some = [rows for rows in range(entry.rows, 0, -1) if rows * deal.threads % WARP == 0]
    ways = [(rows, entry.stages, entry.lag) for rows in some] + [(some[-1], 2, 0)]
    if blocks > 1:  # no stage to fetch ahead into, but an earlier step reads a row as long as that again and again
        ways.append((1, 1, 0))
    return [Layout(deal, rows, blocks, stages, lag, saved_bytes, grad_bytes) for rows, stages, lag in ways]


_ALL = [
    Kind(False, memory_efficient, weighted, biased, narrow, 1, float16)
    for memory_efficient, weighted, biased, narrow, float16 in itertools.product((False, True), repeat=5)
    if memory_efficient or not float16
]
KINDS = list({(kind.memory_efficient, kind.biased, kind.float16, kind.parameter_bytes): kind for kind in _ALL}.values())
"""As far as layouts differ."""
