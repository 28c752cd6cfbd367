"""List layouts of the pipelined backward that come before the tables', for kinds with more than a row and its gradient.

`first_for` chooses. Rows of other lengths are laid out as the plain norm's. As measured on an H100 unless they say
otherwise, in 16 bits, as fractions of a copy.
"""

from normlab.kernels.backward.between import between_for
from normlab.kernels.backward.pipelined.kind import Kind
from normlab.kernels.backward.tables import Candidate

# fmt: off
GATED = (  # a vector per thread, which registers keep from pass to pass, as measured on an H200
    Candidate(
        columns_from=65, columns_up_to=128, threads=16, rows=16, stages=2,
        why="0.92 to 0.94 of a copy at 128 columns, 0.89 from the output; 32 rows: 0.91, 0.89",
    ),
    Candidate(
        columns_from=257, columns_up_to=512, vectors=1, rows=4, stages=2,
        why="0.92 of a copy at 512 columns; two vectors: 0.90; on an H100 0.91, two rows: 0.89",
    ),
    Candidate(
        columns_from=513, columns_up_to=1024, vectors=1, rows=2, stages=2,
        why="0.91 of a copy at 1024 columns, 0.93 from the output, on an H100; four rows: 0.90, 0.90",
    ),
    Candidate(
        columns_from=1025, columns_up_to=2048, vectors=1, rows=2, stages=2,
        why="0.86 of a copy at 2048 columns, 0.86 from the output; one row, three stages: 0.81, 0.81, but on an H100 "
            "0.90, 0.92 instead of 0.89, 0.88",
    ),
    Candidate(
        columns_from=2049, columns_up_to=4096, threads=512, rows=1, stages=2,
        why="0.88 of a copy at 4096 columns, 0.87 from the output; four stages: 0.87, 0.85",
    ),
)
# A backward of x + residual fetches a third array, the gradient of the sum: with few vectors per thread, registers
# suffice for more threads.
SUMMED = (  # from the input, with RMSNorm / LayerNorm
    Candidate(
        columns_from=769, columns_up_to=1024, threads=64, rows=8, stages=2,
        why="0.85 / 0.79 of a copy at 1024 columns; three stages, and a prefetch of 1: 0.83 / 0.78",
    ),
    Candidate(
        columns_from=2049, columns_up_to=3072, vectors=3, rows=2, stages=3, prefetch=1,
        why="0.91 / 0.90 of a copy at 3072 columns; 256 threads, of which a half has one vector: 0.88 / 0.86",
    ),
    Candidate(
        columns_from=3073, columns_up_to=4096, vectors=2, rows=2, stages=3, prefetch=1,
        why="0.93 / 0.91 of a copy at 4096 columns; 128 threads, four stages: as fast; on an H200 0.88, these 0.89",
    ),
    Candidate(
        columns_from=4097, columns_up_to=6144, vectors=2, rows=1, stages=3, prefetch=1,
        why="0.91 / 0.90 of a copy at 5120 columns; four vectors, two rows: 0.92 / 0.90",
    ),
    Candidate(
        columns_from=6145, columns_up_to=16384, columns_per_block=4096, vectors=2, rows=1, stages=4, prefetch=1,
        why="0.94 / 0.91 of a copy at 8192 columns, 0.93 / 0.89 at 16384; four rows of 128 threads, three stages: "
            "0.89 / 0.89, 0.86 / 0.87",
    ),
)
SUMMED_RECOMPUTED = (  # from the output
    Candidate(
        columns_from=769, columns_up_to=1024, threads=64, rows=4, stages=3,
        why="0.82 / 0.77 of a copy at 1024 columns; eight rows, and for LayerNorm a prefetch of 1: 0.81 / 0.72",
    ),
    Candidate(
        columns_from=1025, columns_up_to=2048, vectors=2, rows=4, stages=3,
        why="0.89 / 0.85 of a copy at 2048 columns; prefetch of 1: 0.87 / 0.82",
    ),
    Candidate(
        columns_from=2049, columns_up_to=3072, vectors=3, rows=2, stages=3,
        why="0.93 / 0.90 of a copy at 3072 columns; prefetch of 1: 0.90 / 0.87",
    ),
    Candidate(
        columns_from=3073, columns_up_to=4096, vectors=2, rows=2, stages=2,
        why="0.93 / 0.92 of a copy at 4096 columns; 128 threads, four stages, prefetch of 1: 0.91 / 0.89",
    ),
    Candidate(
        columns_from=4097, columns_up_to=6144, vectors=2, rows=1, stages=4,
        why="0.92 / 0.90 of a copy at 5120 columns; four vectors, two rows, prefetch of 1: 0.89 / 0.86",
    ),
    Candidate(
        columns_from=6145, columns_up_to=16384, columns_per_block=4096, vectors=2, rows=2, stages=2,
        why="0.93 / 0.91 of a copy at 8192 columns, 0.91 / 0.89 at 16384; one block of 512 threads, three stages: "
            "0.92 / 0.87 at 8192",
    ),
)
SAMPLED = (
    Candidate(
        columns_from=1025, columns_up_to=1536, threads=64, rows=4, stages=2,
        why="0.86 of a copy at 1152 columns; 128 threads, of which a half has one vector: 0.74",
    ),
)
# Rows that begin in the middle of a vector, as measured at 2^26 elements on an H100, as LayerNorm / RMSNorm. "Before":
# laid out as aligned rows are, with threads without columns where rows are a little longer than a power of two.
SHORT_EDGES = (
    Candidate(
        columns_up_to=128, threads=16, rows=32, stages=3,
        why="0.40 / 0.45 of a copy at 65 columns (LayerNorm / RMSNorm); one element at a time: 0.24 / 0.23; on an H100",
    ),
    Candidate(
        columns_from=257, columns_up_to=304, threads=16, rows=24, stages=2,
        why="0.89 / 0.89 of a copy at 257 columns (LayerNorm / RMSNorm), 0.86 at 289; 32 rows: 0.82 / 0.86, 0.85",
    ),
    Candidate(
        columns_up_to=384, threads=16, rows=32, stages=2,
        why="0.89 of a copy at 333 columns (LayerNorm); 24 rows: 0.84",
    ),
    Candidate(
        columns_up_to=768, threads=32, rows=8, stages=2,
        why="0.88 / 0.89 of a copy at 513 columns (LayerNorm / RMSNorm), from the output 0.86 (LayerNorm); 16 lanes: "
            "0.86 / 0.88, 0.83",
    ),
    Candidate(
        columns_up_to=1024, threads=64, rows=8, stages=3, prefetch=1,
        why="0.87 / 0.87 of a copy at 1001 columns on an H100 (LayerNorm / RMSNorm)",
    ),
    Candidate(
        columns_from=1537, columns_up_to=1800, threads=128, rows=2, stages=3,
        why="0.91 / 0.95 of a copy at 1537 columns (LayerNorm / RMSNorm), from the output 0.85 / 0.94; four rows of 96 "
            "threads: 0.78 / 0.85, 0.70 / 0.89",
    ),
    Candidate(
        columns_up_to=3072, vectors=3, rows=4, stages=2,
        why="0.90 / 0.89 of a copy at 2047 columns (LayerNorm / RMSNorm); two rows, prefetch: 0.63 / 0.66; on an H100",
    ),
)
MIDDLE_EDGES = Candidate(
    columns_up_to=6144, vectors=3, rows=2, stages=3,
    why="0.90 of a copy at 5001 columns (RMSNorm), from the output 0.86 / 0.88; four vectors, prefetch of 1: 0.85, "
        "0.83 / 0.83",
)
# Blocks of 12,288 columns, three quarters of the longest, where a cluster of such blocks has as many as one of the
# longest blocks would.
EDGES_OF_CLUSTERS = tuple(
    Candidate(
        columns_from=first, columns_up_to=last, columns_per_block=12288, vectors=vectors, rows=1, stages=stages,
        prefetch=1, why=why,
    )
    for first, last, vectors, stages, why in (
        (16385, 24576, 3, 4, "0.82 of a copy at 16855 columns (LayerNorm); before 0.72"),
        (65537, 73728, 3, 4, "0.73 of a copy at 70001 columns (LayerNorm), from the output 0.69; before 0.48"),
        (73729, 81920, 5, 4, "0.78 of a copy at 80003 columns (LayerNorm), from the output 0.68; three vectors: 0.71, "
                             "0.62, and their registers spill"),
        (131073, 163840, 5, 4, "0.69 of a copy at 150001 columns (LayerNorm), from the output 0.57; three vectors: "
                               "0.45, 0.41"),
        (163841, 196608, 4, 3, "0.64 of a copy at 190002 columns (LayerNorm), from the output 0.59; three vectors, "
                               "four stages: 0.61, 0.50"),
    )
)
EDGES_SAVED_WITH_BIAS = (
    Candidate(
        columns_from=2305, columns_up_to=3072, vectors=3, rows=2, stages=2,
        why="0.90 of a copy at 2561 columns (LayerNorm); four rows: 0.85",
    ),
    *SHORT_EDGES,
    Candidate(
        columns_from=3073, columns_up_to=3584, threads=160, rows=2, stages=3,
        why="0.89 of a copy at 3073 columns (LayerNorm), 0.91 at 3329; 128 threads, three rows: 0.87, 0.86",
    ),
    Candidate(
        columns_from=3585, columns_up_to=4088, vectors=4, rows=2, stages=3, prefetch=1,
        why="0.91 of a copy at 3585 columns (LayerNorm); three rows, no prefetch: 0.86",
    ),
    Candidate(
        columns_up_to=5120, vectors=4, rows=3, stages=3,
        why="0.90 of a copy at 5001 columns (LayerNorm); two rows: 0.86, with a prefetch of 1 0.83",
    ),
    Candidate(
        columns_up_to=8192, vectors=4, rows=2, stages=3,
        why="0.86 of a copy at 6501 columns (LayerNorm); prefetch of 1: 0.82",
    ),
    Candidate(
        columns_from=8193, columns_up_to=10240, columns_per_block=5120, vectors=4, rows=3, stages=3, prefetch=1,
        why="0.85 of a copy at 9001 columns (LayerNorm); before 0.80",
    ),
    *EDGES_OF_CLUSTERS,
    Candidate(
        columns_from=81921, columns_up_to=131072, columns_per_block=16384, vectors=4, rows=1, stages=3,
        why="0.76 of a copy at 91707 columns (LayerNorm), 0.70 at 120001; twice as many blocks: 0.64, 0.67",
    ),
)
FOUR_VECTORS = Candidate(
    columns_from=6145, columns_up_to=6656, vectors=4, rows=2, stages=3,
    why="0.84 of a copy at 6145 columns, from the output (LayerNorm), 0.85 at 6501; as aligned rows: 0.80, 0.82",
)
EDGES_RECOMPUTED_WITH_BIAS = (
    Candidate(
        columns_from=257, columns_up_to=272, threads=16, rows=16, stages=2,
        why="0.84 of a copy at 257 columns, from the output (LayerNorm); 24 rows: 0.79; but at 289 0.81, 24 rows: 0.84",
    ),
    Candidate(
        columns_from=769, columns_up_to=864, threads=64, rows=4, stages=2,
        why="0.88 of a copy at 769 columns, from the output (LayerNorm); eight rows: 0.83",
    ),
    *SHORT_EDGES,
    Candidate(
        columns_from=3073, columns_up_to=3584, threads=160, rows=3, stages=2,
        why="0.86 of a copy at 3073 columns, from the output (LayerNorm); as aligned rows: 0.79",
    ),
    MIDDLE_EDGES._replace(columns_from=4097),
    FOUR_VECTORS,
    Candidate(
        columns_from=7681, columns_up_to=8448, vectors=3, rows=1, stages=3, prefetch=1,
        why="0.84 of a copy at 7681 columns, from the output (LayerNorm), 0.81 at 8191; four vectors: 0.79, 0.80",
    ),
    Candidate(
        columns_from=12289, columns_up_to=14336, columns_per_block=7168, vectors=5, rows=2, stages=3,
        why="0.80 of a copy at 12289 columns, from the output (LayerNorm), 0.83 at 14001; as aligned rows: 0.75, 0.80",
    ),
    *EDGES_OF_CLUSTERS,
)
FIVE_VECTORS = FOUR_VECTORS._replace(
    columns_up_to=7680, vectors=5,
    why="float16, whose registers spill with four vectors: 0.67 of a copy at 6145 columns on an H200, from the output "
        "(LayerNorm), 0.74 at 7001; one row of three vectors: 0.59, 0.65",
)
EDGES_RECOMPUTED_FLOAT16_WITH_BIAS = tuple(
    FIVE_VECTORS if row is FOUR_VECTORS else row for row in EDGES_RECOMPUTED_WITH_BIAS
)
PAIRS_OF_ROWS = (
    *(
        Candidate(
            columns_from=first, columns_up_to=last, columns_per_block=10240, vectors=4, rows=2, stages=2,
            why="0.91 of a copy at 16855 columns, from the output 0.86 (RMSNorm), 0.78, 0.77 at 65535; before 0.71, "
                "0.65, 0.47, 0.47",
        )
        for first, last in ((16385, 20480), (32769, 40960), (65537, 81920), (131073, 163840))
    ),
    EDGES_OF_CLUSTERS[0],
)


def edges_without_bias(
    stages: int, prefetch: int, middle: tuple[Candidate, ...], longest: tuple[tuple[int, int], ...]
) -> tuple[Candidate, ...]:
    """Return the table of rows without a bias.

    stages, prefetch: where blocks have 8192 columns or 16384. middle: the rows that differ between dtypes. longest:
    where blocks have 16384.
    """
    return (
        *SHORT_EDGES,
        MIDDLE_EDGES,
        Candidate(
            columns_from=8193, columns_up_to=10240, columns_per_block=5120, vectors=4, rows=3, stages=3,
            why="0.90 of a copy at 9001 columns, from the output 0.89 (RMSNorm); before 0.79, 0.73",
        ),
        Candidate(
            columns_from=10241, columns_up_to=16384, columns_per_block=8192, threads=256, rows=2, stages=stages,
            prefetch=prefetch,
            why="0.91 of a copy at 11581 columns, from the output 0.92 (RMSNorm); twice as many blocks: 0.85, 0.82",
        ),
        *middle,
        *(
            Candidate(
                columns_from=first, columns_up_to=last, columns_per_block=16384, vectors=4, rows=1, stages=stages,
                prefetch=prefetch,
                why="0.82 of a copy at 120001 columns, from the output 0.81 (RMSNorm), 0.72 at 200001; before 0.78, "
                    "0.79, 0.58",
            )
            for first, last in longest
        ),
    )


EDGES_SAVED = edges_without_bias(3, 1, PAIRS_OF_ROWS, ((81921, 131072), (163841, 245760)))
EDGES_RECOMPUTED = (
    Candidate(
        columns_from=131073, columns_up_to=163840, columns_per_block=10240, vectors=4, rows=1, stages=4, prefetch=1,
        why="0.71 of a copy at 150001 columns, from the output (RMSNorm); two rows: 0.68, and their registers spill",
    ),
    *edges_without_bias(2, 0, tuple(row for row in PAIRS_OF_ROWS if row.columns_from < 131073), ((81921, 131072),)),
)
EDGES_RECOMPUTED_FLOAT16 = edges_without_bias(2, 0, EDGES_OF_CLUSTERS, ((81921, 131072),))  # pairs of rows spilled
PAIR_OF_SINGLES = Candidate(
    columns_from=6145, columns_up_to=8192, columns_per_block=4096, vectors=4, rows=2, stages=3, prefetch=1,
    why="0.87 / 0.90 of a copy at 7001 columns, from the output 0.86 / 0.88; two rows of 512 threads 0.86 / 0.89, "
        "0.90 / 0.90, but their registers spill",
)
# A LayerNorm's registers spill from 5,121 columns on, if it is laid out as aligned rows are.
PAIR_OF_SINGLES_WITH_BIAS = PAIR_OF_SINGLES._replace(columns_from=5121)
PAIR_OF_SINGLES_RECOMPUTED_WITH_BIAS = PAIR_OF_SINGLES_WITH_BIAS._replace(
    stages=2, prefetch=0,
    why="0.89 of a copy at 6145 columns, from the output (LayerNorm), 0.86 at 7001; one row, three stages: 0.77, 0.80",
)
EDGES_OF_SINGLES = (  # the widest element has 32 bits
    Candidate(
        columns_from=385, columns_up_to=768, threads=64, rows=8, stages=2,
        why="0.93 of a copy at 533 columns (LayerNorm), from the output 0.92; four rows, prefetch of 1: 0.82, 0.84",
    ),
    Candidate(
        columns_from=769, columns_up_to=1024, threads=128, rows=2, stages=3,
        why="0.96 of a copy at 769 columns (LayerNorm), from the output 0.95; 64 threads: 0.82, 0.81",
    ),
    Candidate(
        columns_from=1025, columns_up_to=1152, threads=96, rows=3, stages=3,
        why="0.94 of a copy at 1025 columns (LayerNorm), from the output 0.94; as aligned rows: 0.90, 0.88",
    ),
    Candidate(
        columns_from=8193, columns_up_to=9216, columns_per_block=4096, vectors=3, rows=3, stages=3, prefetch=1,
        why="0.89 / 0.92 of a copy at 8191 columns; two rows of 256 threads: 0.82 / 0.86",
    ),
    Candidate(
        columns_from=16385, columns_up_to=20480, columns_per_block=8192, vectors=4, rows=2, stages=2,
        why="0.89 / 0.88 of a copy at 16855 columns, from the output 0.88 / 0.88; before 0.82 / 0.82, 0.80 / 0.82",
    ),
)
EDGES_OF_LONG_SINGLES = tuple(
    Candidate(
        columns_from=first, columns_up_to=last, columns_per_block=9216, vectors=6, rows=1, stages=2,
        why="0.83 / 0.85 of a copy at 65535 columns, 0.70 / 0.84 at 131071; before 0.71 / 0.75, 0.52 / 0.63",
    )
    for first, last in ((65537, 73728), (131073, 147456))
)
# fmt: on


def first_for(widest: int, kind: Kind, third: bool, alignments: int) -> tuple[Candidate, ...]:
    """Return the candidates that come before the kind's table.

    widest: bytes per element of the widest array. third: rows have a third array. alignments: as in the layout.
    """
    if alignments > 1:
        return edges_for(widest, kind)
    if widest != 2:
        return ()
    if kind.gating is not None:
        return GATED
    if kind.sampled:
        return SAMPLED
    if third:
        return SUMMED_RECOMPUTED if kind.memory_efficient else SUMMED
    return between_for(kind)


def edges_for(widest: int, kind: Kind) -> tuple[Candidate, ...]:
    """Return the candidates of rows that begin in the middle of a vector."""
    recomputed = kind.memory_efficient
    if widest == 4:
        if recomputed and kind.biased:
            # gamma, 1 / gamma and beta leave no room for a third stage, and of long rows none for a second one
            return PAIR_OF_SINGLES_RECOMPUTED_WITH_BIAS, *EDGES_OF_SINGLES
        pair = PAIR_OF_SINGLES_WITH_BIAS if kind.biased else PAIR_OF_SINGLES
        return pair, *EDGES_OF_SINGLES, *EDGES_OF_LONG_SINGLES
    if kind.biased and not recomputed:
        return EDGES_SAVED_WITH_BIAS
    if kind.biased:
        return EDGES_RECOMPUTED_FLOAT16_WITH_BIAS if kind.float16 else EDGES_RECOMPUTED_WITH_BIAS
    if recomputed:
        return EDGES_RECOMPUTED_FLOAT16 if kind.float16 else EDGES_RECOMPUTED
    return EDGES_SAVED
