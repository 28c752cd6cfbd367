"""List the fastest layouts of the pipelined backward, as measured, by the form of the backward and the row's length.

`table_for` chooses a table; `first_tables` come before it for kinds with more than a row and its gradient.
`layouts.layout_for` takes the first `Candidate` that is for rows so long and whose pipeline stages fit the GPU's shared
memory, if need be with fewer row groups or stages.
"""

from typing import NamedTuple

from normlab.kernels.backward.pipelined.kind import Kind


class Candidate(NamedTuple):
    """One line of a table: how rows of up to `columns_up_to` columns may be laid out.

    Columns count in vectors of 16 bytes. A row whose addresses allow only narrower vectors has more vectors. It is laid
    out as the longer row that has as many vectors of 16 bytes.
    """

    columns_up_to: int  # the most columns of a row that this layout is for
    rows: int  # rows that a block works on at the same time, each by a row group of its threads
    stages: int  # pipeline stages per row group: rows that shared memory holds
    why: str  # the reason, with the number that decided
    # Threads per row in a block; fewer than 32 are lanes of a warp that has several rows. None: as many as it takes
    # with `vectors` vectors each.
    threads: int | None = None
    vectors: int = 4  # per thread, if `threads` is None
    prefetch: int = 0  # 1 if the next row's first pass comes before a row's second pass, else 0
    # The most columns per block. A longer row is divided among the blocks of a cluster, as few as hold it. None: a row
    # has one block.
    columns_per_block: int | None = None
    columns_from: int = 1  # the fewest columns of a row that this layout is for


# Measured on an H200 with all parameters as the bench does (cold L2), as fractions of a copy, to choose among layouts;
# what the kernels reach is in the records. SAVED: the backward starts from the input. RECOMPUTED: it starts
# from the output and recomputes x̂. SINGLES: the widest element has 32 bits, four elements per vector. The other tables
# are for 16 bits, eight elements per vector.
# Tried without gain in 16 bits: an mbarrier for each row group, which works in clusters, too. It gave 0.82 where
# `team_sync` gives 0.93 (n2 = 4096), and 0.79 instead of 0.85 (n2 = 16384).
# fmt: off
LONGEST = Candidate(
    columns_up_to=262144, columns_per_block=16384, threads=512, rows=1, stages=2,
    why="0.85 / 0.81 of a copy at 65536 columns (bfloat16 / float16, output saved); 256 threads, two rows: 0.83 / 0.79",
)
# 262,144 columns that begin in the middle of a vector touch a vector more.
LONGER = LONGEST._replace(columns_from=262144 + 1, columns_up_to=262144 + 8, columns_per_block=16384 + 8)
MIDDLE = Candidate(
    columns_up_to=6144, vectors=4, rows=2, stages=3, prefetch=1,
    why="0.94 to 0.96 of a copy at 5120 columns; 128 threads: 0.93",
)
WITHOUT_BIAS = (  # RMSNorm, or LayerNorm without a bias
    Candidate(
        columns_up_to=64, threads=8, rows=32, stages=3,
        why="0.94 / 0.95 of a copy at 64 columns (input / output saved)",
    ),
    Candidate(
        columns_up_to=128, threads=16, rows=32, stages=2,
        why="0.97 / 0.97 of a copy at 128 columns (input / output saved)",
    ),
    Candidate(
        columns_up_to=256, threads=32, rows=8, stages=3,
        why="0.96 / 0.98 of a copy at 256 columns (input / output saved); 16 lanes: 0.95 / 0.95",
    ),
    Candidate(
        columns_up_to=512, threads=32, rows=8, stages=4,
        why="0.98 / 0.98 of a copy at 384 columns (input / output saved); 16 lanes: 0.97 / 0.97",
    ),
    Candidate(
        columns_up_to=768, threads=64, rows=4, stages=4,
        why="0.98 / 0.98 of a copy at 768 columns (input / output saved); 32 threads: 0.98 / 0.96",
    ),
    Candidate(
        columns_up_to=1024, threads=64, rows=8, stages=3,
        why="0.96 / 0.96 of a copy at 1024 columns (input / output saved); prefetch of 1: 0.96 / 0.95",
    ),
    Candidate(
        columns_up_to=2048, threads=128, rows=4, stages=3, prefetch=1,
        why="0.98 / 0.97 of a copy at 2048 columns (input / output saved); 64 threads: 0.98 / 0.96",
    ),
    Candidate(
        columns_up_to=4096, vectors=4, rows=2, stages=4, prefetch=1,
        why="0.96 / 0.96 of a copy at 4096 columns (input / output saved); three stages: 0.95 / 0.94",
    ),
    MIDDLE,
    Candidate(
        columns_up_to=8192, columns_per_block=4096, threads=128, rows=4, stages=3, prefetch=1,
        why="0.97 / 0.96 of a copy at 8192 columns (input / output saved); one block: 0.96 / 0.95",
    ),
    Candidate(
        columns_up_to=8192, vectors=4, rows=1, stages=3, prefetch=1,
        why="one block, for GPUs without clusters; not measured alone",
    ),
)
SAVED = (
    *WITHOUT_BIAS,
    Candidate(
        columns_up_to=32768, columns_per_block=4096, threads=128, rows=4, stages=3, prefetch=1,
        why="0.97 of a copy at 16384 columns; by half as many blocks: 0.94",
    ),
    Candidate(
        columns_up_to=131072, columns_per_block=8192, threads=256, rows=2, stages=3, prefetch=1,
        why="0.97 of a copy at 65536 columns; no prefetch: 0.89",
    ),
    LONGEST,
    LONGER,
)
RECOMPUTED = (
    *WITHOUT_BIAS,
    Candidate(
        columns_up_to=32768, columns_per_block=4096, threads=128, rows=4, stages=2,
        why="0.98 of a copy at 16384 columns; prefetch of 1: 0.96",
    ),
    Candidate(
        columns_up_to=131072, columns_per_block=8192, threads=256, rows=2, stages=2,
        why="0.96 of a copy at 65536 columns; prefetch of 1: 0.93",
    ),
    LONGEST,
    LONGER,
)
SAVED_WITH_BIAS = (
    Candidate(
        columns_up_to=64, threads=8, rows=32, stages=3, prefetch=1,
        why="0.90 of a copy at 64 columns; no prefetch: 0.86; 4 lanes: 0.85",
    ),
    Candidate(
        columns_up_to=128, threads=16, rows=16, stages=3, prefetch=1,
        why="0.92 of a copy at 128 columns; no prefetch: 0.89",
    ),
    Candidate(
        columns_up_to=256, threads=16, rows=32, stages=5, prefetch=1,
        why="0.92 of a copy at 256 columns; a whole warp: 0.91",
    ),
    Candidate(
        columns_up_to=384, threads=16, rows=16, stages=2,
        why="0.96 of a copy at 384 columns; prefetch of 1: 0.94",
    ),
    Candidate(
        columns_up_to=768, threads=32, rows=8, stages=2,
        why="0.96 of a copy at 768 columns; prefetch of 1: 0.95",
    ),
    Candidate(
        columns_up_to=1024, threads=64, rows=8, stages=3, prefetch=1,
        why="0.95 of a copy at 1024 columns; no prefetch: 0.87",
    ),
    Candidate(
        columns_up_to=2048, threads=128, rows=4, stages=3, prefetch=1,
        why="0.97 of a copy at 2048 columns; 64 threads: 0.96",
    ),
    Candidate(
        columns_up_to=4096, vectors=4, rows=2, stages=4, prefetch=1,
        why="0.97 of a copy at 4096 columns; three stages: 0.96",
    ),
    MIDDLE,
    Candidate(
        columns_up_to=8192, threads=512, rows=1, stages=3, prefetch=1,
        why="0.96 of a copy at 8192 columns; two blocks: 0.90",
    ),
    Candidate(
        columns_up_to=131072, columns_per_block=8192, threads=256, rows=2, stages=3, prefetch=1,
        why="0.94 of a copy at 16384 columns, 0.85 at 65536; twice as many blocks: 0.86 at 16384",
    ),
    LONGEST,
    LONGER,
)


def recomputed_with_bias(longest_of_a_block: Candidate) -> tuple[Candidate, ...]:
    """Return the table of bfloat16 or float16. They differ in `longest_of_a_block`, for rows of about 8192 columns.

    Widening a float16 takes an instruction of the pipe that also does the sums, so another layout is the fastest.
    """
    return (
        Candidate(
            columns_up_to=64, threads=8, rows=32, stages=3,
            why="0.87 of a copy at 64 columns; prefetch of 1: 0.84",
        ),
        Candidate(
            columns_up_to=128, threads=8, rows=32, stages=3, prefetch=1,
            why="0.90 of a copy at 128 columns; no prefetch: 0.89",
        ),
        Candidate(
            columns_up_to=256, threads=16, rows=16, stages=3,
            why="0.92 of a copy at 256 columns; prefetch of 1: 0.92",
        ),
        Candidate(
            columns_up_to=384, threads=16, rows=16, stages=2,
            why="0.95 of a copy at 384 columns; prefetch of 1: 0.92",
        ),
        Candidate(
            columns_up_to=768, threads=32, rows=8, stages=2,
            why="0.97 of a copy at 768 columns; prefetch of 1: 0.93",
        ),
        Candidate(
            columns_up_to=1024, threads=64, rows=8, stages=3, prefetch=1,
            why="0.94 of a copy at 1024 columns; no prefetch: 0.93",
        ),
        Candidate(
            columns_up_to=2048, threads=128, rows=4, stages=3, prefetch=1,
            why="0.96 of a copy at 2048 columns; 64 threads: 0.95",
        ),
        Candidate(
            columns_up_to=3072, vectors=4, rows=2, stages=3, prefetch=1,
            why="between rows that were measured; not measured alone",
        ),
        Candidate(
            columns_up_to=4096, threads=256, rows=2, stages=4, prefetch=1,
            why="0.97 / 0.95 of a copy at 4096 columns (bfloat16 / float16); 128 threads: 0.94 / 0.92",
        ),
        Candidate(
            columns_up_to=5120, threads=128, rows=2, stages=3, prefetch=1,
            why="0.94 / 0.94 of a copy at 5120 columns (bfloat16 / float16); 160 threads: 0.95 / 0.93",
        ),
        MIDDLE,
        longest_of_a_block,
        Candidate(
            columns_up_to=16384, threads=512, rows=1, stages=2,
            why="0.93 / 0.94 of a copy at 16384 columns (bfloat16 / float16); two blocks: 0.95 / 0.91",
        ),
        LONGEST,
        Candidate(
            columns_up_to=8192, vectors=4, rows=2, stages=2,
            why="parameters widened to 32 bits in shared memory; not measured alone",
        ),
        Candidate(
            columns_up_to=131072, columns_per_block=8192, threads=256, rows=2, stages=2,
            why="parameters widened to 32 bits in shared memory; not measured alone",
        ),
    )


RECOMPUTED_WITH_BIAS = recomputed_with_bias(Candidate(
    columns_up_to=8192, threads=512, rows=1, stages=3, prefetch=1,
    why="0.96 of a copy at 8192 columns; two rows of 256 threads, two stages, no prefetch: 0.92",
))
RECOMPUTED_FLOAT16_WITH_BIAS = recomputed_with_bias(Candidate(
    columns_up_to=8192, threads=256, rows=2, stages=2,
    why="0.95 of a copy at 8192 columns; one row of 512 threads, three stages, prefetch of 1: 0.93",
))


SINGLES = (
    Candidate(
        columns_up_to=64, threads=16, rows=32, stages=3,
        why="0.99 / 1.01 of a copy at 64 columns (LayerNorm / RMSNorm)",
    ),
    Candidate(
        columns_up_to=128, threads=16, rows=32, stages=3,
        why="0.98 / 1.01 of a copy at 128 columns (LayerNorm / RMSNorm)",
    ),
    Candidate(
        columns_up_to=256, threads=32, rows=16, stages=3,
        why="0.99 / 1.01 of a copy at 256 columns (LayerNorm / RMSNorm)",
    ),
    Candidate(
        columns_up_to=384, threads=32, rows=8, stages=4, prefetch=1,
        why="0.99 / 1.01 of a copy at 384 columns (LayerNorm / RMSNorm)",
    ),
    Candidate(
        columns_up_to=768, threads=64, rows=4, stages=3, prefetch=1,
        why="0.99 / 1.00 of a copy at 768 columns (LayerNorm / RMSNorm)",
    ),
    Candidate(
        columns_up_to=1024, threads=64, rows=3, stages=3, prefetch=1,
        why="0.99 / 1.01 of a copy at 1024 columns (LayerNorm / RMSNorm); four rows, no prefetch: 0.93 / 0.93",
    ),
    Candidate(
        columns_up_to=2048, threads=160, rows=2, stages=3, prefetch=1,
        why="1.01 / 1.00 of a copy at 2048 columns (LayerNorm / RMSNorm); 128 threads: 0.98 / 0.99",
    ),
    Candidate(
        columns_up_to=4096, threads=256, rows=1, stages=3,
        why="1.00 / 1.00 of a copy at 4096 columns (LayerNorm / RMSNorm); prefetch of 1: 0.98 / 0.98",
    ),
)
LONG_SINGLES = (
    Candidate(
        columns_up_to=8192, threads=256, rows=1, stages=3,
        why="the longest rows of one block, for GPUs without clusters",
    ),
    Candidate(
        columns_up_to=131072, columns_per_block=8192, threads=256, rows=1, stages=3, prefetch=1,
        why="0.98 / 1.00 of a copy at 65536 columns (LayerNorm / RMSNorm); output saved: 0.98 at 16384, 0.99 at 65536",
    ),
    Candidate(
        columns_up_to=262144, columns_per_block=16384, threads=512, rows=1, stages=1,
        why="the longest rows of 16 blocks: no stage to fetch ahead into, but each value is read once",
    ),
)
SAVED_SINGLES = (
    *SINGLES,
    Candidate(
        columns_up_to=5120, vectors=4, rows=1, stages=3, prefetch=1,
        why="0.98 / 0.99 of a copy at 5120 columns (LayerNorm / RMSNorm); half as many threads, two rows: 0.94 / 0.97",
    ),
    Candidate(
        columns_up_to=8192, columns_per_block=4096, threads=512, rows=2, stages=3, prefetch=1,
        why="1.02 / 0.99 of a copy at 8192 columns (LayerNorm / RMSNorm); one block: 0.97 / 0.96",
    ),
    Candidate(
        columns_up_to=16384, columns_per_block=4096, threads=256, rows=2, stages=3, prefetch=1,
        why="1.00 / 1.01 of a copy at 16384 columns (LayerNorm / RMSNorm); two blocks: 0.99 / 0.99",
    ),
    *LONG_SINGLES,
)
RECOMPUTED_SINGLES = (
    *SINGLES,
    Candidate(
        columns_up_to=5120, vectors=4, rows=1, stages=3,
        why="1.01 of a copy at 5120 columns (RMSNorm); prefetch of 1: 0.98",
    ),
    Candidate(
        columns_up_to=8192, columns_per_block=2048, threads=128, rows=4, stages=3, prefetch=1,
        why="1.02 of a copy at 8192 columns (RMSNorm); one block: 0.99",
    ),
    Candidate(
        columns_up_to=16384, columns_per_block=4096, threads=256, rows=2, stages=3, prefetch=1,
        why="1.01 of a copy at 16384 columns (RMSNorm); two blocks: 0.98",
    ),
    *LONG_SINGLES,
)
RECOMPUTED_MIXED_WITH_BIAS = (
    *SINGLES,
    Candidate(
        columns_up_to=5120, vectors=4, rows=1, stages=3,
        why="the layout of float32 parameters and rows; not measured alone",
    ),
    *LONG_SINGLES,
)
RECOMPUTED_SINGLES_WITH_BIAS = (
    *SINGLES,
    Candidate(
        columns_up_to=5120, vectors=4, rows=1, stages=3,
        why="1.01 of a copy at 5120 columns; prefetch of 1: 0.97",
    ),
    Candidate(
        columns_up_to=8192, columns_per_block=2048, threads=256, rows=4, stages=2,
        why="1.00 of a copy at 8192 columns; one block: 0.97. Not for mixed dtypes, which take too many registers for "
            "1024 threads",
    ),
    *LONG_SINGLES,
)
def table_for(narrowest: int, widest: int, kind: Kind) -> tuple[Candidate, ...]:
    """Return the table for a kind. narrowest, widest: bytes per element of the arrays with the fewest and the most."""
    if not kind.memory_efficient:
        if widest == 4:  # one table serves rows with and without a bias
            return SAVED_SINGLES
        return SAVED_WITH_BIAS if kind.biased else SAVED
    if not kind.biased:
        return RECOMPUTED_SINGLES if widest == 4 else RECOMPUTED
    if widest == 4:  # RECOMPUTED_SINGLES_WITH_BIAS has 1024 threads; mixed dtypes take more registers than they have
        return RECOMPUTED_SINGLES_WITH_BIAS if narrowest == 4 else RECOMPUTED_MIXED_WITH_BIAS
    return RECOMPUTED_FLOAT16_WITH_BIAS if kind.float16 else RECOMPUTED_WITH_BIAS
