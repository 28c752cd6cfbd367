"""List the fastest layouts of the forward's steps 6 and 7, as measured, by the length of the row.

`layouts.rows_for` takes the first `Candidate` of a table that the row fits (step 6), and `layouts.slices_for` the first
`Slice` with which a cluster holds the row (step 7).
"""

from typing import NamedTuple


class Candidate(NamedTuple):
    """One line of a table: how step 6 lays out rows of up to `columns_up_to` columns.

    `columns_up_to` counts columns in vectors of 16 bytes. A row whose addresses allow only narrower vectors has more
    vectors. It is laid out as the longer row that has as many vectors of 16 bytes.

    Attributes:
        columns_up_to: the most columns of a row that this layout is for.
        rows: rows per block, at least: more rows of few threads share `layouts.LEAST_THREADS`.
        why: the reason, with the number that decided.
        threads: threads per row; fewer than 32 are lanes of a warp that has several rows. None: as many as it takes
            with `vectors` vectors each. If a row of at most a warp would leave lanes idle, it takes half as many
            (`layouts.with_fewest_lanes_idle`).
        vectors: vectors per thread if `threads` is None.
        resident_threads: the number of threads that a multiprocessor must have registers for, which limits the
            registers of each. None: the compiler takes as many registers as it likes.
        early: are parameters loaded beside the elements, however many rows there are, if `early.pays` agrees? With
            that a row waits for memory once, but takes more registers. A residual or a gate leaves none for it.
        whole: in a plain norm, is this for rows alone whose vectors fill all of the threads? Others take a later line.
    """

    columns_up_to: int
    rows: int
    why: str
    threads: int | None = None
    vectors: int = 4
    resident_threads: int | None = None
    early: bool = False
    whole: bool = False


# Measured on an H200 unless they say otherwise, with n2 from 32 to 16,384, as fractions of a copy of 2^27 elements. A
# name says the bytes of the widest element: HALVES 2 (float16, bfloat16), SINGLES 4. Rows of SHORT_… have at most one
# warp.
# fmt: off
SHORT_HALVES = (  # eight elements per vector; LayerNorm
    Candidate(
        columns_up_to=32, threads=4, rows=32, resident_threads=2048,
        why="0.94 of a copy at 32 columns; any number of registers: 0.88",
    ),
    Candidate(columns_up_to=64, threads=4, rows=32, why="0.98 of a copy at 64 columns; a whole warp: 0.24"),
    Candidate(
        columns_up_to=128, threads=4, rows=128,
        why="0.98 of a copy at 128 columns; eight lanes, 256 threads per block: 0.96",
    ),
    Candidate(columns_up_to=256, threads=8, rows=64, why="0.98 of a copy at 256 columns; a whole warp: 0.81"),
    Candidate(columns_up_to=384, threads=16, rows=16, why="1.00 of a copy at 384 columns; a whole warp: 0.71"),
)
SHORT_RMS_HALVES = (  # "as LayerNorm": in larger blocks, parameters after the sums
    Candidate(
        columns_up_to=128, threads=4, rows=32, early=True,
        why="0.97 of a copy at 72 columns, as LayerNorm 0.88; on an H100 1.01, 0.99",
    ),
    Candidate(
        columns_up_to=256, threads=8, rows=16, early=True,
        why="0.98 of a copy at 136 columns, as LayerNorm 0.84; on an H100 1.01, 0.85",
    ),
    Candidate(
        columns_up_to=384, threads=16, rows=8, early=True,
        why="0.99 of a copy at 264 columns, of 2^23 elements 1.14; as LayerNorm 0.98, 1.03",
    ),
)
SHORT_SINGLES = (  # four elements per vector; LayerNorm / RMSNorm. "Late": in larger blocks, parameters after the sums
    Candidate(
        columns_up_to=64, threads=8, rows=16, early=True,
        why="0.95 / 0.98 of a copy of 2^26 elements at 32 columns; late 0.93 / 0.97",
    ),
    Candidate(
        columns_up_to=256, threads=16, rows=8, early=True,
        why="1.00 / 0.93 of a copy at 132 columns; late 0.94 / 0.93",
    ),
    Candidate(
        columns_up_to=384, threads=32, rows=4, early=True,
        why="1.01 / 1.01 of a copy at 260 columns, late 0.99 / 0.99; of 2^22 elements at 384: 1.19 / 1.22, late "
            "1.16 / 1.19",
    ),
)
# Longer rows. Four vectors per thread are mostly best: fewer threads hold more of a row, and wait less for each other.
# Early parameters save a wait, but LayerNorm has two of them, and in 16 bits no registers for both. RMSNorm of
# 4,097 to 8,192 columns of 16 bits is fastest with two vectors, and as many threads as a multiprocessor holds.
LAYER_HALVES = (
    *SHORT_HALVES,
    Candidate(
        columns_up_to=2048, vectors=2, rows=1, resident_threads=1536, whole=True,
        why="0.99 of a copy at 1024 columns, 1.00 at 2048; early: 0.89, 0.89; on an H100 all 1.00",
    ),
    Candidate(
        columns_up_to=8192, vectors=4, rows=1, resident_threads=768,
        why="0.99 of a copy at 904 columns, 0.97 at 1672, two vectors: 0.86, 0.83; 0.99 at 4096, two vectors: 0.91",
    ),
    Candidate(
        columns_up_to=12288, vectors=5, rows=1, resident_threads=1024,
        why="1.00 of a copy at 8448 columns, 0.99 at 12288; four vectors: 0.91, 0.89; on an H100 all 0.99 to 1.01",
    ),
    Candidate(
        columns_up_to=16384, vectors=4, rows=1, resident_threads=768,
        why="0.97 of a copy at 16384 columns, five vectors: 0.94; on an H100 1.00, 0.99",
    ),
)
RMS_HALVES = (
    *SHORT_RMS_HALVES,
    Candidate(
        columns_up_to=4096, vectors=4, rows=1, early=True,
        why="1.01 of a copy at 2048 and 4096 columns, two vectors: 0.95, 0.95; on an H100 all 1.00 to 1.01",
    ),
    Candidate(
        columns_up_to=8192, vectors=2, rows=1, resident_threads=2048,
        why="1.01 of a copy at 5120 columns, 1.00 at 8192; with more registers: 0.97 at 8192; early: 0.92 at 5120",
    ),
    Candidate(columns_up_to=16384, vectors=4, rows=1, why="1.00 of a copy at 16384 columns; two vectors: 0.99"),
)
LAYER_SINGLES = (
    *SHORT_SINGLES,
    Candidate(
        columns_up_to=1024, vectors=2, rows=2, resident_threads=1536, early=True, whole=True,
        why="1.01 of a copy at 768 columns, 1.03 at 1024; one row: 1.00, 1.02; on an H100 1.009 at 768, later: 1.005",
    ),
    Candidate(
        columns_up_to=5120, vectors=4, rows=1, early=True,
        why="1.01 of a copy at 648 columns, 1.03 at 4096, two vectors: 0.91, 0.98; of 2^22 elements at 4096 0.97, 0.91",
    ),
    Candidate(
        columns_up_to=12288, vectors=4, rows=1,
        why="1.01 of a copy at 6144 and 10240 columns; early: 0.93, 0.73; of 2^22 elements 0.84 at 10240, 512 threads: "
            "0.79",
    ),
    Candidate(
        columns_up_to=16384, threads=512, rows=1,
        why="1.00 of a copy at 16384 columns; 1024 threads: 0.92",
    ),
)
RMS_SINGLES = (
    *SHORT_SINGLES,
    Candidate(
        columns_up_to=1024, vectors=2, rows=4, early=True, whole=True,
        why="1.03 of a copy at 768 columns, 1.02 at 1024; one row: 1.02, 1.02; of 2^25 elements on an H100 0.990 at "
            "1024, parameters later: 0.981",
    ),
    Candidate(
        columns_up_to=10240, vectors=4, rows=1, early=True,
        why="1.02 of a copy at 1536 and 6144 columns, two vectors: 0.98, 0.97; of 2^22 elements at 6144: 0.99, 0.87",
    ),
    Candidate(
        columns_up_to=16384, vectors=4, rows=1, resident_threads=2048,
        why="1.02 of a copy at 16384 columns; with more registers: 0.98; eight vectors: 1.01",
    ),
)
# Vectors narrower than 16 bytes, as measured in vectors of 8 bytes on an H100, unless they say otherwise.
# `columns_up_to` counts twice the columns of such a row. Fewer threads with more vectors each: fewer are idle.
NARROWER_LAYER_HALVES = (
    *SHORT_HALVES,
    Candidate(
        columns_up_to=8192, vectors=6, rows=1, resident_threads=1024,
        why="on an H200 0.96 of a copy at 2052 columns, 0.95 at 3076; five vectors, two rows: 0.88, 0.89; on an H100 "
            "all 1.00 to 1.02",
    ),
    Candidate(
        columns_up_to=16384, vectors=5, rows=1, resident_threads=1024,
        why="0.98 of a copy at 4612 and 6148 columns; four vectors: 0.92, 0.90",
    ),
    Candidate(
        columns_up_to=32768, vectors=8, rows=1, resident_threads=1024,
        why="0.96 of a copy at 10244 columns, 0.97 at 14340; six vectors: 0.91, 0.97; four: 0.90, 0.71",
    ),
)
NARROWER_RMS_HALVES = (
    *SHORT_RMS_HALVES,
    Candidate(
        columns_up_to=8192, vectors=5, rows=1, early=True,
        why="of 2^22 elements 1.44 of a copy at 3076 columns, four vectors: 1.29; of 2^27 both 1.02",
    ),
    Candidate(
        columns_up_to=32768, vectors=4, rows=1, resident_threads=1024,
        why="0.99 of a copy at 8196 and 14340 columns; eight vectors: 0.90, 0.98",
    ),
    Candidate(
        columns_up_to=40960, vectors=8, rows=1, resident_threads=1024,
        why="0.97 of a copy at 16388 and 19460 columns; more threads: 0.85, 0.88",
    ),
)
NARROWER_LAYER_SINGLES = (
    *SHORT_SINGLES,
    Candidate(
        columns_up_to=5120, vectors=6, rows=1, early=True,
        why="on an H200 1.02 of a copy at 1026 columns, 0.98 at 2050, four vectors: 0.93, 0.88; on an H100 all 1.01",
    ),
    LAYER_SINGLES[-1],
    Candidate(
        columns_up_to=24576, vectors=6, rows=1, resident_threads=1024,
        why="0.96 of a copy at 11002 columns; 1024 threads: 0.85",
    ),
)
NARROWER_RMS_SINGLES = (
    *SHORT_SINGLES,
    Candidate(
        columns_up_to=12288, vectors=5, rows=1, early=True,
        why="on an H200 1.03 of a copy at 2050 columns, 1.01 at 3074, four vectors: 0.98, 0.94; on an H100 all 1.01",
    ),
)
# A residual or a gate takes as many registers as the row: a block of 512 threads would be alone on its multiprocessor.
BESIDE_HALVES = (
    SHORT_HALVES[0],
    Candidate(
        columns_up_to=128, threads=8, rows=32,
        why="0.99 / 0.98 of a copy at 128 columns (gate / residual); four lanes, 512 threads per block: 0.84 / 0.95",
    ),
    Candidate(
        columns_up_to=256, threads=16, rows=16,
        why="0.99 / 1.00 of a copy at 256 columns (gate / residual); eight lanes, 512 threads per block: 0.85 / 0.99",
    ),
    Candidate(
        columns_up_to=768, threads=32, rows=8,
        why="0.99 / 1.00 of a copy at 768 columns (gate / residual); 16 rows: 0.82 / 1.00",
    ),
)
# Parameters per sample (`stages.sampled`): few threads per row with many vectors each, mostly in blocks of 128 threads.
# Rows of several warps, or blocks of more rows, wait for each other.
SAMPLED_HALVES = (
    *SHORT_HALVES[:3],
    Candidate(columns_up_to=384, threads=16, rows=8, why="0.90 of a copy at 384 columns; 16 rows: 0.84"),
    Candidate(columns_up_to=768, threads=16, rows=8, why="0.92 of a copy at 768 columns; a whole warp: 0.88"),
    Candidate(columns_up_to=1024, threads=32, rows=4, why="0.93 of a copy at 1024 columns; 16 lanes: 0.90"),
    Candidate(columns_up_to=1152, threads=16, rows=8, why="0.94 of a copy at 1152 columns; a whole warp: 0.88"),
    Candidate(columns_up_to=1536, threads=32, rows=4, why="0.97 of a copy at 1536 columns; two warps: 0.76"),
    Candidate(columns_up_to=2048, threads=32, rows=4, why="0.92 of a copy at 2048 columns; two warps: 0.84"),
    Candidate(columns_up_to=3072, threads=32, rows=4, why="0.92 of a copy at 3072 columns; two warps: 0.85"),
    Candidate(columns_up_to=4096, threads=32, rows=4, why="0.96 of a copy at 4096 columns; two warps: 0.86"),
    Candidate(columns_up_to=8192, threads=64, rows=2, why="0.89 of a copy at 5120 and 8192 columns; four warps: 0.82"),
    Candidate(
        columns_up_to=14336, threads=128, rows=1,
        why="0.79 of a copy at 12288 columns; 16 warps: 0.71; at 9216 columns 0.73, 0.55",
    ),
    Candidate(
        columns_up_to=16384, threads=512, rows=1, resident_threads=1024,
        why="0.82 of a copy at 16384 columns; four warps: 0.74; on an H100 0.98, 0.93",
    ),
)
SAMPLED_SINGLES = (
    *SHORT_SINGLES,
    Candidate(columns_up_to=2048, threads=32, rows=4, why="0.99 of a copy at 1152 columns on an H100; two warps: 0.93"),
    Candidate(columns_up_to=4096, threads=64, rows=2, why="0.94 of a copy at 4096 columns; one warp: 0.40"),
    Candidate(columns_up_to=8192, threads=128, rows=2, why="0.92 of a copy at 8192 columns; one row: 0.86"),
)
# fmt: on
# By bytes per element of the widest array: candidates before those of TABLES.
BESIDE = {2: BESIDE_HALVES}
SAMPLED = {2: SAMPLED_HALVES, 4: SAMPLED_SINGLES}
# By bytes per element of the widest array, and whether the norm is RMSNorm.
NARROWER = {
    (2, False): NARROWER_LAYER_HALVES,
    (2, True): NARROWER_RMS_HALVES,
    (4, False): NARROWER_LAYER_SINGLES,
    (4, True): NARROWER_RMS_SINGLES,
}
TABLES = {(2, False): LAYER_HALVES, (2, True): RMS_HALVES, (4, False): LAYER_SINGLES, (4, True): RMS_SINGLES}


class Slice(NamedTuple):
    """How step 7 divides a slice of a row, the part of one block: `threads` threads with `vectors` vectors each."""

    threads: int
    vectors: int
    why: str


# By elements per vector: the slice of 32 KB, then the larger slices, for rows that a cluster does not hold otherwise.
# fmt: off
LARGER = (
    Slice(
        threads=512, vectors=8,
        why="rows that 16 smaller slices do not hold; at 65536 columns of bfloat16, which they do hold: 0.74 / 0.85 of "
            "a copy (LayerNorm / RMSNorm)",
    ),
    Slice(threads=1024, vectors=8, why="rows that 16 smaller slices do not hold; not measured alone"),
)
SLICES = {
    8: (
        Slice(
            threads=256, vectors=8,
            why="0.94 / 0.98 of a copy at 65536 columns of bfloat16 (LayerNorm / RMSNorm, H100); 512 threads, four "
                "vectors: 0.91 / 0.98",
        ),
        *LARGER,
    ),
    4: (
        Slice(
            threads=256, vectors=8,
            why="0.92 / 0.95 of a copy at 65536 columns of float32 (LayerNorm / RMSNorm); 512 threads, four vectors: "
                "0.84 / 0.94",
        ),
        Slice(
            threads=256, vectors=9,
            why="0.73 / 0.92 of a copy at 131071 columns of float32 (LayerNorm / RMSNorm, H100), two slices per "
                "multiprocessor; 512 threads, five vectors, one slice: 0.49 / 0.77",
        ),
        *LARGER,
    ),
}
# RMSNorm of rows of 16 bits that begin in the middle of a vector and are a little longer than eight slices hold.
EDGES = Slice(
    threads=512, vectors=5,
    why="0.92 of a copy at 131071 columns of bfloat16 (RMSNorm, H100); 16 blocks of 256 threads: 0.77",
)
# Narrower vectors than those of SLICES. There is no slice of 1024 threads: its threads would have 64 registers each,
# too few for the addresses of eight vectors.
NARROW = (
    Slice(
        threads=512, vectors=8,
        why="1,024 rows of 65,535 float32 take 390 us, cut into pieces 449; rows of 65,537, which need slices of 1,024 "
            "threads, take 2868 us, cut into pieces 462",
    ),
)
# fmt: on
