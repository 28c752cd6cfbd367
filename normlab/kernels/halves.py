"""List the rows that could come in vectors of half the width, but are faster cut out of whole vectors, as measured.

Rows of a length that is a multiple of 8 bytes and not of 16 begin at one of two places in a vector of 16 bytes. They
can come in vectors of 8 bytes, which are aligned, or in whole vectors, cut where a row begins and ends (`edges`).
Vectors of 8 bytes take twice the instructions for memory. The tables lay out such a row as one with twice as many
columns, so just beyond a table's line many of its threads are idle. Whole vectors take instructions to cut, about as
many for each length. So which way is faster changes several times with the length.

Measured on an H100 at 2^24 to 2^26 elements of bfloat16 and float32, 104 lengths, both ways in one process. Fractions
of a copy, of 8 bytes and whole: backward of float32 LayerNorm, 202 columns 0.67 / 0.94, 1,026 columns 0.95 / 0.90,
3,010 columns 0.79 / 0.87; of bfloat16, 516 columns 0.69 / 0.88, 3,012 columns 0.96 / 0.89. Forward of float32
LayerNorm, 65,542 columns 0.54 / 0.85; of bfloat16, 8,708 columns 0.97 / 0.85, 48,068 columns 0.92 / 0.82.

Of few rows the whole vectors are the slower way: their backward takes 1.1 to 1.4 times as long (1 row of 516 columns of
bfloat16, from the output, 5.5 and 7.7 us). A row must have the same bits in every batch, so the ranges are chosen for
many rows.
"""

Ranges = tuple[tuple[int, int], ...]

END = 2**62  # of the last range: longer than any row

# By bytes per element of the widest array, and whether the norm is RMSNorm: first and last column of each range.
FORWARD: dict[tuple[int, bool], Ranges] = {
    (2, False): ((16_385, 32_768), (65_537, 90_112), (163_841, END)),
    (2, True): ((65_537, 131_072),),
    (4, False): ((12_289, END),),
    (4, True): ((24_576, END),),
}
# By bytes per element of the widest array, whether there is a bias, and whether the output is saved.
BACKWARD: dict[tuple[int, bool, bool], Ranges] = {
    (2, True, False): ((385, 768), (1_025, 1_536), (4_097, END)),
    (2, True, True): ((385, 640), (1_025, 1_280), (8_193, 11_000), (16_385, 26_000), (32_769, END)),
    (2, False, False): ((513, 900), (1_025, 1_536), (3_073, 4_608), (6_145, 8_500), (26_000, END)),
    (2, False, True): ((513, 640), (1_025, 1_280), (32_769, END)),
    (4, True, False): ((161, 768), (2_561, 4_608), (6_145, 11_000), (13_000, END)),
    (4, True, True): ((161, 768), (2_561, 4_608), (6_145, END)),
    (4, False, False): ((161, 768), (2_561, 3_400), (6_145, 10_000), (13_000, 18_000), (28_000, 40_000), (65_537, END)),
    (4, False, True): ((161, 768), (3_073, 4_352), (6_145, 8_500), (13_000, 18_000), (28_000, 40_000), (65_537, END)),
}


def whole_vectors_pay(n2: int, ranges: Ranges) -> bool:
    """Return True if rows of n2 columns, which vectors of half the width would do, are faster in whole vectors."""
    return any(first <= n2 <= last for first, last in ranges)
