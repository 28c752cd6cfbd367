"""What is made of ncu's rows of the products, on launches that a test makes up."""

import pytest

from hardware.l2 import BLOCKS, FROM_MEMORY, PLACES, SIZES, WAVES, rows_of


def launches(blocks=1.0, from_memory=0.0):
    """One for each problem, the sizes in order and every step of each."""
    return [
        ("sgemm", {FROM_MEMORY: from_memory, WAVES: 0.5 + place, BLOCKS: blocks})
        for place in range(len(SIZES) * len(PLACES))
    ]


def test_each_launch_is_that_of_its_step_and_size():
    found = rows_of(launches())
    assert [(row["size"], row["step"]) for row in found] == [(size, step) for size in SIZES for step in PLACES]
    assert [row["waves"] for row in found] == [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]


def test_a_share_is_of_what_all_blocks_ask_for():
    """4096 by 4096 in tiles of 128 by 128: 32 by 32 blocks, each reads 256 rows and columns of 4096 float32."""
    asked = 32 * 32 * 256 * 4096 * 4
    (first, *_, last) = rows_of(launches(from_memory=asked / 4))
    assert (first["bytes_asked"], first["bytes_from_memory"], first["l2_hit"]) == (asked, asked / 4, 0.75)
    assert (last["bytes_asked"], last["l2_hit"]) == (8 * asked, round(1 - 1 / 32, 4))


def test_what_is_expected_follows_from_the_blocks_that_are_resident():
    """One a multiprocessor: 132 at once, in rows of 32 blocks; they need 5 rows of tiles and all 32 columns."""
    one, *_ = rows_of(launches(blocks=1.0))
    assert one["expected_l2_hit"] == round(1 - (5 + 32) / (2 * 132), 4)
    assert one["expected_waves"] == round(32 * 32 / 132, 2)
    two, _, banded, *_ = rows_of(launches(blocks=2.0))
    assert two["expected_l2_hit"] == round(1 - (9 + 32) / (2 * 264), 4)  # 264 of 32 a row: 8 rows, and 8 blocks more
    assert two["expected_waves"] == round(32 * 32 / 264, 2)
    assert banded["expected_l2_hit"] == round(
        1 - (32 + 16) / (2 * 264), 4
    )  # bands of 8 blocks by 32, and 8 blocks more


def test_a_launch_too_few_or_too_many_is_no_record():
    for wrong in (launches()[1:], [*launches(), *launches()[:1]]):
        with pytest.raises(ValueError, match="zip"):
            rows_of(wrong)
