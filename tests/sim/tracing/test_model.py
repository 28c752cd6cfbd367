"""The price of one request: by hand, and the log's NumPy against the model's sets."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from normlab.sim.tracing.log import grouped, sectors_of, wavefronts_of
from normlab.sim.tracing.model import conflicts, phases, sectors, wavefronts

LANES = range(32)


@pytest.mark.parametrize(
    ("stride", "size", "want"),
    [
        (4, 4, 4),  # neighbours: 128 bytes
        (8, 4, 8),
        (32, 4, 32),
        (132, 4, 32),
        (0, 4, 1),  # all the same
        (2, 2, 2),  # halves
        (16, 16, 16),  # 16-byte vectors: 512 bytes
        (8, 8, 8),
    ],
)
def test_sectors_of_a_strided_warp(stride, size, want):
    assert sectors([lane * stride for lane in LANES], size) == want


def test_a_warp_that_begins_inside_a_sector_touches_one_more():
    assert sectors([4 + 4 * lane for lane in LANES], 4) == 5


@pytest.mark.parametrize(("address", "size"), [(30, 4), (540, 12)])  # the second is aligned: 45 times 12
def test_an_access_across_a_border_touches_two_sectors(address, size):
    assert sectors([address], size) == 2


@pytest.mark.parametrize(
    ("stride", "size", "want"),
    [
        (4, 4, 1),  # a bank each
        (8, 4, 2),
        (16, 4, 4),
        (128, 4, 32),  # one bank
        (132, 4, 1),  # a padded column
        (0, 4, 1),  # broadcast
        (2, 2, 1),  # two float16 share a word
        (66, 2, 1),  # 33 halves apart: words 16.5 apart, all in different banks or shared
        (8, 8, 2),  # float64: half warps
        (16, 8, 4),
        (16, 16, 4),  # quarter warps
    ],
)
def test_wavefronts_of_a_strided_warp(stride, size, want):
    assert wavefronts(LANES, [lane * stride for lane in LANES], size) == want


def test_multicast_several_words_of_different_banks_one_wavefront():
    assert wavefronts(LANES, [4 * (lane // 8) for lane in LANES], 4) == 1


def test_conflicts_are_wavefronts_above_one_a_phase():
    assert conflicts(LANES, [128 * lane for lane in LANES], 4) == 31
    assert conflicts(LANES, [16 * lane for lane in LANES], 16) == 0
    assert conflicts(LANES, [16 * lane for lane in LANES], 8) == 2


@pytest.mark.parametrize(
    ("place", "of_8_bytes", "of_16_bytes"),
    [  # as the H200 counted them: tests/hardware
        (lambda lane: 0, 1, 2),
        (lambda lane: lane // 2, 1, 2),
        (lambda lane: lane % 2, 1, 2),
        (lambda lane: lane // 16, 1, 2),
        (lambda lane: lane % 16, 2, 4),
        (lambda lane: lane if lane < 16 else lane // 2, 2, 4),
        (lambda lane: (lane + 1) // 2 % 16, 2, 4),
    ],
)
def test_lanes_that_want_the_same_in_pairs_go_together(place, of_8_bytes, of_16_bytes):
    for size, want in ((8, of_8_bytes), (16, of_16_bytes)):
        addresses = [size * place(lane) for lane in LANES]
        assert wavefronts(LANES, addresses, size) == want == len(phases(LANES, addresses, size))


def test_stores_do_not_go_together():
    assert wavefronts(LANES, [0] * 32, 8, loads=False) == 2
    assert wavefronts(LANES, [0] * 32, 16, loads=False) == 4


def test_a_lane_that_takes_no_part_agrees_with_any():
    assert wavefronts(range(0, 32, 2), [8 * lane for lane in range(16)], 8) == 1
    assert wavefronts(range(16), [8 * lane for lane in range(16)], 8) == 1


@st.composite
def requests(draw):
    """Requests as (lanes, addresses) of one size."""
    size = draw(st.sampled_from([1, 2, 4, 8, 16]))
    made = []
    for _ in range(draw(st.integers(1, 6))):
        lanes = draw(st.lists(st.integers(0, 31), min_size=1, max_size=32, unique=True))
        elements = draw(st.lists(st.integers(0, 300), min_size=32, max_size=32))
        shared = draw(st.sampled_from([lambda lane: lane, lambda lane: lane // 2, lambda lane: lane & ~2]))
        made.append((lanes, [size * elements[shared(lane)] for lane in lanes]))
    return size, made


@given(requests())
def test_the_log_prices_as_the_model_does(drawn):
    size, made = drawn
    rows = [
        (0, path, lane, address)
        for path, (lanes, addresses) in enumerate(made)
        for lane, address in zip(lanes, addresses, strict=True)
    ]
    table = np.array(rows, np.int64)
    groups = grouped(table)
    sizes = np.full(len(table), size)
    assert list(groups.lanes) == [len(lanes) for lanes, _ in made]
    assert list(sectors_of(groups, table, sizes)) == [sectors(addresses, size) for _, addresses in made]
    for loads in (True, False):
        passes, least = wavefronts_of(groups, table, sizes, np.full(len(table), loads))
        assert list(passes) == [wavefronts(lanes, addresses, size, loads) for lanes, addresses in made]
        assert list(least) == [len(phases(lanes, addresses, size, loads)) for lanes, addresses in made]


def test_what_a_lane_repeats_at_one_place_is_a_request_of_its_own():
    table = np.array([(0, 7, lane, 4 * lane) for lane in (0, 1, 2, 1, 2, 2)], np.int64)
    assert sorted(grouped(table).lanes) == [1, 2, 3]
