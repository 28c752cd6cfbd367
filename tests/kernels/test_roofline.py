"""`normlab.kernels.roofline`: against NVIDIA's published tables, what was measured on an H200, and by hand."""

import json
from importlib.resources import files

import pytest

from normlab.bench import records
from normlab.kernels.roofline import (
    A100,
    H200,
    l2_hit,
    peak,
    product_bytes,
    product_operations,
    residency,
    roofline,
    tile_intensity,
    waves,
)
from normlab.stages.lanes import blocks_in_bands, blocks_in_rows

# The CUDA Occupancy Calculator's curve "impact of varying register count per thread" for compute capabilities 8.0 and
# 9.0 and blocks of 128 threads: registers -> resident warps. cuda_occupancy.h's blocks: tests/engine/test_offline.py.
PUBLISHED = {
    32: 64, 40: 48, 48: 40, 56: 36, 64: 32, 72: 28, 80: 24, 88: 20, 96: 20, 104: 16, 112: 16, 128: 16, 136: 12,
    168: 12, 176: 8, 255: 8,
}  # fmt: skip


@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
@pytest.mark.parametrize(("registers", "warps"), PUBLISHED.items())
def test_warps_for_registers_are_those_of_the_published_table(registers, warps, capability):
    found = residency(registers, 0, 128, capability)
    assert found.occupancy.warps == warps
    assert found.occupancy.fraction == warps / 64
    assert found.bound_by == ("registers" if warps < 64 else "threads")


@pytest.mark.parametrize(
    ("capability", "shared_bytes", "blocks"),
    # 164 and 228 KB a multiprocessor, 163 and 227 KB of them for one block, 1 KB of each block for the system
    [((8, 0), 163 * 1024, 1), ((8, 0), 81 * 1024, 2), ((8, 0), 82 * 1024, 1), ((8, 0), 40 * 1024, 4),
     ((9, 0), 227 * 1024, 1), ((9, 0), 113 * 1024, 2), ((9, 0), 114 * 1024, 1), ((9, 0), 56 * 1024, 4),
     ((9, 0), 227 * 1024 + 1, 0)],
)  # fmt: skip
def test_blocks_for_shared_memory_are_those_of_the_programming_guide(capability, shared_bytes, blocks):
    found = residency(32, shared_bytes, 128, capability)
    assert found.occupancy.blocks == blocks
    assert found.bound_by == "shared memory"


@pytest.mark.parametrize(("threads", "blocks"), [(1024, 2), (768, 2), (512, 4), (64, 32), (32, 32)])
def test_blocks_for_threads_are_those_of_the_programming_guide(threads, blocks):
    found = residency(16, 0, threads)
    assert (found.occupancy.blocks, found.bound_by) == (blocks, "threads")


def test_the_peaks_are_those_of_the_data_sheets():
    assert H200.peak == pytest.approx(67e12, rel=0.01)
    assert A100.peak == pytest.approx(19.5e12, rel=0.01)
    assert pytest.approx(13.9, rel=0.01) == H200.ridge
    with pytest.raises(ValueError, match=r"compute capability 7\.5 are not known here: 8\.0, 9\.0"):
        peak(1, 1.0, (7, 5))


def test_a_large_product_is_bound_by_arithmetic_and_a_thin_one_by_memory():
    assert product_operations(4096, 4096, 4096) == 2 * 4096**3
    assert product_bytes(2, 3, 5) == 4 * (10 + 15 + 6)
    assert product_bytes(2, 3, 5, added=True) == 4 * (10 + 15 + 6 + 6)

    def at_best(m, n, k):
        return roofline(product_operations(m, n, k), product_bytes(m, n, k), H200)

    assert at_best(4096, 4096, 4096) == 2 * 4096**3 / H200.peak
    assert at_best(4096, 1, 4096) == product_bytes(4096, 1, 4096) / H200.bandwidth


def test_the_intensity_of_a_tile_is_the_harmonic_mean_of_its_sides():
    assert tile_intensity(128, 256) == pytest.approx(1 / (1 / 128 + 1 / 256) / 2)


def measured():
    """(what, operations, bytes, seconds) of all that was measured on an H200: see normlab/bench/records."""
    for record in records.load([]):
        if record["what"] in ("norm", "family"):
            for row in record["rows"]:
                array_bytes = row["bytes"] // (2 if row["direction"] == "forward" else 3)
                copy = "copy" if array_bytes >= 2**28 else "copy of little"
                yield copy, 0, 2 * array_bytes, row["copy"]["median_us"] * 1e-6
                for name, entry in row["contenders"].items():
                    if entry["status"] == "ok":
                        yield name, 0, row["bytes"], entry["median_us"] * 1e-6
        if record["what"] == "sgemm":
            sides = record["m"], record["n"], record["k"]
            for entry in record["steps"]:
                if entry["status"] == "ok":
                    work = product_operations(*sides), product_bytes(*sides)
                    yield f"sgemm {entry['step']}", *work, entry["median_us"] * 1e-6


def test_nothing_that_was_measured_is_faster_than_the_roofline_and_a_copy_is_close_to_it():
    found = list(measured())
    shares = [(what, roofline(operations, moved, H200) / seconds) for what, operations, moved, seconds in found]
    assert len(shares) > 100
    assert [one for one in shares if one[1] > 1] == []
    assert min(share for what, share in shares if what == "copy") > 0.8


def test_waves_of_the_sizes_that_are_measured():
    assert waves(32 * 32, 264).rounds == 4
    assert waves(32 * 32, 264).busy == pytest.approx(0.970, abs=1e-3)
    assert waves(264, 264) == (1.0, 1, 1.0)


def test_bands_of_blocks_hit_l2_more_often():
    grid = (128, 128, 64, 64, 264)  # 8192 x 8192 in tiles of 128 x 128, two blocks on each of 132 multiprocessors
    in_rows, in_bands = (l2_hit(*grid, place) for place in (blocks_in_rows.py_func, blocks_in_bands(8).py_func))
    assert in_rows == pytest.approx(1 - (5 + 64) / (2 * 264))
    assert in_bands == pytest.approx(1 - (8 + 33) / (2 * 264))
    assert l2_hit(128, 128, 1, 1, 264, blocks_in_rows.py_func) == 0.0


def test_hits_and_waves_are_those_that_were_measured():
    """By ncu, record l2_h200. Where tiles travel ahead, blocks drift apart, and as they do L2 gives less again."""
    rows = json.loads((files("normlab.bench") / "records" / "l2_h200.json").read_text())["rows"]
    places = {"z_order": blocks_in_rows, "double_buffer": blocks_in_rows, "block_order": blocks_in_bands(8)}
    assert {(row["step"], row["size"]) for row in rows} == {(step, size) for step in places for size in (4096, 8192)}
    for row in rows:
        side = row["size"] // 128  # blocks of 128 x 128, two on each of 132 multiprocessors
        expected = l2_hit(128, 128, side, side, 264, places[row["step"]].py_func)
        assert waves(side * side, 264).full == pytest.approx(row["waves"], abs=0.006), "as ncu counts them"
        assert row["l2_hit"] < expected + 0.005, "no block finds what nobody has asked for"
        if row["step"] != "double_buffer":
            assert row["l2_hit"] > expected - 0.03
    hits = {(row["step"], row["size"]): row["l2_hit"] for row in rows}
    assert hits["block_order", 8192] > hits["double_buffer", 8192] + 0.1
