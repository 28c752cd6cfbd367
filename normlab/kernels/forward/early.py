"""Decide where threads load their parameters early: beside the elements of their row, before its sums.

That saves a wait, but the parameters then take registers while the sums are made, and so fewer rows may be on their
way. With few rows it always pays if all blocks still fit at once (`row_counts.for_rows`): they take up to 15 % less
time. With many rows the norm must be plain, the table must ask for it (`tables.Candidate.early`), and `pays` must
agree: RMSNorm gains up to 5 %, but LayerNorm of 16 bits, which has two parameters, would reach 0.89 of a copy instead
of 1.00.
"""

from normlab.stages.vector import WARP, ThreadMap

OWN_REGISTERS = 16  # of a thread, beside those of its elements and their parameters: the compiler takes 12 to 20
# Of a thread, at most: as many as an RMSNorm with 40 elements per thread takes. 136 columns of bfloat16 gain by it
# (`tables.SHORT_RMS_HALVES`).
MOST_REGISTERS = 96
# The same for a LayerNorm, which has two parameters, if its rows do not fill their threads.
FEW_REGISTERS = 56


def registers_of(thread_map: ThreadMap, rms: bool) -> int:
    """Return the registers of a thread that holds its elements and their parameters."""
    return OWN_REGISTERS + thread_map.elements * (2 if rms else 3)


def pays(n2: int, thread_map: ThreadMap, rms: bool) -> bool:
    """Return True if early parameters may pay for many rows of n2 columns.

    They take registers of threads without columns, too. Fractions of a copy, early and late:

        columns              fill      early   late
        1,104 of bfloat16    0.72      0.93    0.99   RMSNorm, H100
          904 of bfloat16    0.88      1.03    1.02   RMSNorm, H100
        5,000 of float32     0.98      0.86    1.02   LayerNorm, H200
        1,026 of float32     0.89      1.02    0.93   LayerNorm in vectors of two, which takes few registers, H200

    A warp that has a whole row or several is never so short of registers.
    """
    registers = registers_of(thread_map, rms)
    if registers > MOST_REGISTERS:
        return False
    may_idle = rms or registers <= FEW_REGISTERS
    filled = 8 * n2 >= (7 if may_idle else 8) * thread_map.columns
    return filled or thread_map.threads <= WARP
