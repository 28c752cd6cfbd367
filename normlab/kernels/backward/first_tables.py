"""List layouts of the pipelined backward that come before the tables', for kinds with more than a row and its gradient.

`first_for` chooses. Rows of other lengths are laid out as the plain norm's. As measured on an H100 unless they say
otherwise, in 16 bits, as fractions of a copy.
"""

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
        columns_from=6145, columns_up_to=16384, columns_a_block=4096, vectors=2, rows=1, stages=4, prefetch=1,
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
        columns_from=6145, columns_up_to=16384, columns_a_block=4096, vectors=2, rows=2, stages=2,
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
EDGES = (  # rows that begin in the middle of a vector
    Candidate(
        columns_up_to=128, threads=16, rows=32, stages=3,
        why="0.40 / 0.45 of a copy at 65 columns (LayerNorm / RMSNorm); one element at a time: 0.24 / 0.23; on an H100",
    ),
    Candidate(
        columns_up_to=384, threads=16, rows=32, stages=2,
        why="0.80 / 0.84 of a copy at 333 columns (LayerNorm / RMSNorm); half as many rows: 0.72 / 0.74; on an H100",
    ),
    Candidate(
        columns_up_to=768, threads=32, rows=8, stages=2,
        why="the layout of LayerNorm at 768 columns; not measured alone",
    ),
    Candidate(
        columns_up_to=1024, threads=64, rows=8, stages=3, prefetch=1,
        why="0.87 / 0.87 of a copy at 1001 columns on an H100 (LayerNorm / RMSNorm)",
    ),
    Candidate(
        columns_up_to=3072, vectors=3, rows=4, stages=2,
        why="0.90 / 0.89 of a copy at 2047 columns (LayerNorm / RMSNorm); two rows, prefetch: 0.63 / 0.66; on an H100",
    ),
)
# fmt: on


def first_for(widest: int, kind: Kind, third: bool, alignments: int) -> tuple[Candidate, ...]:
    """Return the candidates that come before the kind's table.

    widest: bytes per element of the widest array. third: rows have a third array. alignments: as in the layout.
    """
    if widest != 2:
        return ()
    if alignments > 1:
        return EDGES
    if kind.gating is not None:
        return GATED
    if kind.sampled:
        return SAMPLED
    if third:
        return SUMMED_RECOMPUTED if kind.memory_efficient else SUMMED
    return ()
