"""List layouts of the pipelined backward for long rows of 16 bits whose length lies between two powers of two.

As measured at 2^26 elements on an H200 and on an H100, fractions of a copy. "Before": laid out as the next power of two
is. Rows that begin in the middle of a vector have layouts of their own (`first_tables`).
"""

from normlab.kernels.backward.pipelined.kind import Kind
from normlab.kernels.backward.tables import Candidate

# A power of two is divided among blocks and threads without a remainder. A row a quarter longer, laid out as the next
# power of two is, leaves a sixth of the threads without columns and a third of the shared memory without rows: then too
# few bytes are on their way.
QUARTER, HALF = 5 / 4, 3 / 2  # the longest rows, as multiples of the power of two below them


def beyond(powers: tuple[int, ...], most: float, layout: Candidate) -> tuple[Candidate, ...]:
    """Return a layout for the rows longer than each of the powers, up to `most` times as long."""
    return tuple(layout._replace(columns_from=power + 1, columns_up_to=int(power * most)) for power in powers)


def five_vectors(columns_per_block: int, rows: int, stages: int, prefetch: int, why: str) -> Candidate:
    """Return the layout of rows up to a quarter longer than a power of two; `beyond` says which."""
    # Five where the power of two below has four. Several small blocks share a multiprocessor: fewer rows wait for each
    # other.
    return Candidate(0, rows, stages, why, vectors=5, prefetch=prefetch, columns_per_block=columns_per_block)


def three_vectors(columns_per_block: int, why: str) -> Candidate:
    """Return the layout of rows longer than a power of two by up to a half; `beyond` says which."""
    # Three where the next power of two has four.
    return Candidate(0, 1, 3, why, vectors=3, prefetch=1, columns_per_block=columns_per_block)


# fmt: off
# Sixteen blocks of two rows each would all wait for each other. A bias has no registers left for two such blocks.
ROW_BY_ROW = Candidate(
    columns_from=98305, columns_up_to=131072, columns_per_block=8192, threads=256, rows=1, stages=3, prefetch=1,
    why="0.92 of a copy at 131072 columns on an H200, two rows per block 0.84; on an H100 0.94, 0.93",
)
SAVED = (
    *beyond((8192, 16384, 32768), QUARTER, five_vectors(
        2560, rows=1, stages=3, prefetch=1,
        why="0.91 / 0.90 of a copy at 20480 columns on an H200 (RMSNorm / LayerNorm), before 0.80 / 0.76; on an H100 "
            "0.92 / 0.90, before 0.91 / 0.87",
    )),
    *beyond((65536,), QUARTER, five_vectors(
        5120, rows=1, stages=3, prefetch=1,
        why="0.89 / 0.80 of a copy at 81920 columns on an H200 (RMSNorm / LayerNorm), before 0.74 / 0.56; on an H100 "
            "0.92 / 0.87, before 0.86 / 0.70",
    )),
    *beyond((8192, 16384, 65536), HALF, three_vectors(
        6144,
        why="0.92 / 0.86 of a copy at 24576 columns on an H200 (RMSNorm / LayerNorm), before 0.87 / 0.83, and 0.86 / "
            "0.71 at 98304, before 0.81 / 0.62; on an H100 0.95 / 0.91 at 24576, before 0.96 / 0.92",
    )),
    *beyond((131072,), HALF, three_vectors(
        12288,
        why="0.77 / 0.57 of a copy at 196608 columns on an H200 (RMSNorm / LayerNorm), before 0.71 / 0.47; on an H100 "
            "0.91 / 0.76, before 0.77 / 0.64",
    )),
)
SAVED_WITHOUT_BIAS = (
    ROW_BY_ROW,
    Candidate(
        columns_from=196609, columns_up_to=262144, columns_per_block=16384, threads=512, rows=1, stages=3, prefetch=1,
        why="0.83 of a copy at 262144 columns on an H200, two stages 0.74; on an H100 0.90, 0.82",
    ),
    *beyond((131072,), QUARTER, five_vectors(
        10240, rows=1, stages=2, prefetch=0,
        why="0.88 of a copy at 163840 columns on an H200, four stages and a prefetch of 1: 0.81, before 0.61; on an "
            "H100 0.94, before 0.81",
    )),
    *SAVED,
)
SAVED_WITH_BIAS = (
    *beyond((131072,), QUARTER, five_vectors(
        10240, rows=1, stages=4, prefetch=1,
        why="0.70 of a copy at 163840 columns on an H200, before 0.38; on an H100 0.82, before 0.52",
    )),
    *SAVED,
)
RECOMPUTED_WITHOUT_BIAS = (
    *beyond((8192, 16384, 32768), QUARTER, five_vectors(
        2560, rows=4, stages=2, prefetch=0,
        why="0.94 of a copy at 20480 columns on an H200, before 0.70; on an H100 0.95, before 0.89",
    )),
    *beyond((65536,), QUARTER, five_vectors(
        5120, rows=2, stages=2, prefetch=0,
        why="0.92 of a copy at 81920 columns on an H200, before 0.57; on an H100 0.93, before 0.76",
    )),
    *beyond((131072,), QUARTER, five_vectors(
        10240, rows=1, stages=2, prefetch=0,
        why="0.90 of a copy at 163840 columns on an H200, before 0.51; on an H100 0.91, before 0.69",
    )),
    *beyond((8192, 16384), HALF, three_vectors(
        3072,
        why="0.91 of a copy at 24576 columns on an H200, before 0.82; on an H100 0.93, before 0.95",
    )),
    *beyond((65536,), HALF, three_vectors(
        6144,
        why="0.82 of a copy at 98304 columns on an H200, before 0.70; on an H100 0.95, before 0.91",
    )),
    ROW_BY_ROW._replace(
        stages=2, prefetch=0,
        why="0.92 of a copy at 131072 columns on an H200, two rows per block 0.82; on an H100 0.94, 0.95",
    ),
    *beyond((131072,), HALF, three_vectors(
        12288,
        why="0.75 of a copy at 196608 columns on an H200, before 0.64; on an H100 0.87, before 0.87",
    )),
)
RECOMPUTED_WITH_BIAS = (
    *beyond((16384, 32768), QUARTER, five_vectors(
        5120, rows=2, stages=2, prefetch=0,
        why="0.89 of a copy at 20480 columns on an H200, before 0.66; on an H100, by twice as many blocks, 0.90, "
            "before 0.84",
    )),
    *beyond((65536, 131072), QUARTER, five_vectors(
        10240, rows=1, stages=4, prefetch=1,
        why="0.75 of a copy at 81920 columns and 0.67 at 163840 on an H200, before 0.49 and 0.35; on an H100 0.87 and "
            "0.81, before 0.70 and 0.48",
    )),
    *beyond((16384,), HALF, three_vectors(
        3072,
        why="0.84 of a copy at 24576 columns on an H200, before 0.75; on an H100 0.90, before 0.92",
    )),
    *beyond((65536,), HALF, three_vectors(
        6144, why="0.69 of a copy at 98304 columns on an H200, before 0.63",
    )),
    *beyond((131072,), HALF, three_vectors(
        12288,
        why="0.57 of a copy at 196608 columns on an H200, before 0.43; on an H100 0.70, before 0.59",
    )),
)
RECOMPUTED_FLOAT16_WITH_BIAS = tuple(  # of 256 threads per block, the registers of float16 spill
    row._replace(columns_per_block=2560, rows=3) if row.rows == 2 else row for row in RECOMPUTED_WITH_BIAS
)
# fmt: on


def between_for(kind: Kind) -> tuple[Candidate, ...]:
    """Return the candidates of a kind's rows of 16 bits, which come before its table."""
    if not kind.memory_efficient:
        return SAVED_WITH_BIAS if kind.biased else SAVED_WITHOUT_BIAS
    if not kind.biased:
        return RECOMPUTED_WITHOUT_BIAS
    return RECOMPUTED_FLOAT16_WITH_BIAS if kind.float16 else RECOMPUTED_WITH_BIAS
