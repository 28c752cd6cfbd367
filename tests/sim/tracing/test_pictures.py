"""The pictures of a trace show its numbers: what is marked in them is counted here."""

import subprocess
import sys
import warnings
from io import BytesIO
from itertools import pairwise

import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.collections import PathCollection
from numba import cuda, float32

from normlab.sim.tracing import Line, Request, trace
from normlab.sim.tracing.pictures import draw_banks, draw_sectors
from normlab.sim.tracing.pictures.arrows import tree
from normlab.sim.tracing.pictures.grid import heat_grid
from normlab.sim.tracing.pictures.maps import bank_map, sector_map
from normlab.stages.block import block_sum
from normlab.stages.warp import warp_sum


@pytest.fixture(autouse=True)
def _no_window():
    matplotlib.use("Agg")
    yield
    pyplot.close("all")


def request(space, addresses, size, lanes=None, origin=0, operation="ld"):
    lanes = tuple(range(len(addresses)) if lanes is None else lanes)
    return Request(Line("kernel.py", 7), operation, space, "x", size, origin, (0, 0, 0), 0, lanes, tuple(addresses))


def strided(stride, size=4, begin=0):
    return [begin + stride * lane for lane in range(32)]


RANDOM = np.random.default_rng(3)
ADDRESSES = {
    "contiguous": (strided(4), 4),
    "not aligned": (strided(4, begin=20), 4),
    "every other": (strided(8), 4),
    "every 33rd": (strided(132), 4),
    "one address": (strided(0), 4),
    "16 bytes": (strided(16), 16),
    "8 bytes, every other": (strided(16), 8),
    "half precision": (strided(2), 2),
    "reversed doubles": (strided(-8, begin=8 * 31), 8),
    "gather": ([4 * n for n in RANDOM.integers(0, 500, 32).tolist()], 4),
    "gather of 16 bytes": ([16 * n for n in RANDOM.integers(0, 90, 32).tolist()], 16),
}


def artist(ax, gid):
    """The artists that one entry of the legend stands for."""
    return [child for child in ax.get_children() if child.get_gid() == gid]


def marked(ax, gid):
    return sum(len(found.get_offsets()) for found in artist(ax, gid))


# --- sectors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ADDRESSES)
@pytest.mark.parametrize("origin", [0, 12])
def test_a_sector_map_has_a_column_a_sector_and_every_byte_that_a_lane_wants(name, origin):
    addresses, size = ADDRESSES[name]
    asked = request("global", [address + 4096 + origin for address in addresses], size, origin=4096 + origin)
    seen = sector_map(asked)
    assert len(seen.sectors) == asked.sectors
    assert seen.moved_bytes == 32 * asked.sectors
    wanted = {address + n for address in asked.addresses for n in range(size)}
    assert seen.used_bytes == len(wanted)
    assert {4096 + 32 * seen.sectors[p.column] + p.start + n for p in seen.pieces for n in range(p.size)} == wanted
    for lane in range(32):
        assert sum(piece.size for piece in seen.pieces if piece.lane == lane) == size

    ax = draw_sectors(asked)
    (used,) = artist(ax, "bytes used")
    assert len(used.get_paths()) == len(seen.pieces)
    boxes = {
        (round(32 * path.vertices[:, 0].min()), round(32 * np.ptp(path.vertices[:, 0])), path.vertices[:, 1].min())
        for path in used.get_paths()
    }
    assert boxes == {(32 * p.column + p.start, p.size, p.lane) for p in seen.pieces}
    (moved,) = artist(ax, "sector moved")
    cells = {(path.vertices[:, 0].min(), path.vertices[:, 1].min()) for path in moved.get_paths()}
    assert {int(column) for column, _ in cells} == set(range(asked.sectors))
    assert f"{asked.sectors} sector" in ax.get_title(loc="left")
    assert f"{len(wanted):,} of {32 * asked.sectors:,} bytes used" in ax.get_title(loc="left")


def test_a_sector_map_marks_lanes_that_are_not_active_and_gaps():
    asked = request("global", [0, 4, 320], 4, lanes=[3, 4, 9])
    ax = draw_sectors(asked)
    (absent,) = artist(ax, "lane not active")
    assert len(absent.get_paths()) == 29
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0", "10"]
    assert len(artist(ax, "gap")) == 1
    assert not artist(draw_sectors(request("global", strided(4), 4)), "gap")
    assert ax.get_title(loc="left") == (
        "global load of 'x', line 7: 3 lanes of 4 bytes, lane 3 at byte 0\n"
        "block (0, 0, 0), warp 0: 2 sectors, 12 of 64 bytes used (19%)"
    )


# --- banks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ADDRESSES)
def test_a_punchcard_marks_every_word_and_the_conflicts_of_the_model(name):
    addresses, size = ADDRESSES[name]
    asked = request("shared", addresses, size)
    seen = bank_map(asked)
    assert sum(seen.passes.values()) == asked.wavefronts
    last_turns = [max(p.turn for p in seen.punches if p.phase == phase) + 1 for phase in seen.passes]
    assert sum(last_turns) - len(seen.passes) == asked.conflicts
    assert {(p.lane, p.bank) for p in seen.punches} == {
        (lane, word % 32) for lane in range(32) for word in asked.words_of(lane)
    }

    ax = draw_banks(asked)
    kinds = ["a word of its own", "a word for several lanes", "conflict: number of the wavefront"]
    assert sum(marked(ax, kind) for kind in kinds) == len(seen.punches)
    assert marked(ax, kinds[2]) == sum(punch.contested for punch in seen.punches)
    assert f"{asked.wavefronts} wavefront" in ax.get_title(loc="left")
    assert f": {asked.conflicts} bank conflict" in ax.get_title(loc="left")


def test_a_column_of_a_tile_is_one_bank_served_in_32_wavefronts_and_padding_frees_it():
    column = draw_banks(request("shared", strided(128), 4))
    assert marked(column, "conflict: number of the wavefront") == 32
    numbers = [text.get_text() for text in column.texts]
    assert numbers[:32] == [str(turn) for turn in range(1, 33)]
    assert numbers[32:] == ["32 wavefronts"]
    padded = draw_banks(request("shared", strided(132), 4))
    assert marked(padded, "a word of its own") == 32
    assert not artist(padded, "conflict: number of the wavefront")


def test_lanes_of_one_word_are_a_broadcast_and_no_conflict():
    ax = draw_banks(request("shared", strided(0), 4))
    assert marked(ax, "a word for several lanes") == 32
    assert [text.get_text() for text in ax.texts] == ["1 wavefront"]


@pytest.mark.parametrize(("size", "count"), [(4, 1), (8, 2), (16, 4)])
def test_wide_accesses_are_drawn_in_their_phases(size, count):
    ax = draw_banks(request("shared", strided(size), size))
    phases = [f"phase {n}: 1 wavefront" for n in range(1, count + 1)] if count > 1 else ["1 wavefront"]
    assert [text.get_text() for text in ax.texts] == phases


def test_phases_keep_their_numbers_when_half_a_warp_is_away():
    ax = draw_banks(request("shared", [0, 8, 16, 24], 8, lanes=[20, 21, 22, 23]))
    assert [text.get_text() for text in ax.texts] == ["phase 2: 1 wavefront"]


def test_a_picture_of_the_wrong_memory_is_refused():
    with pytest.raises(ValueError, match=r"sector map shows global memory.*shared load of 'x'.*draw_banks shows it"):
        draw_sectors(request("shared", [0], 4))
    with pytest.raises(ValueError, match=r"bank map shows shared memory.*global load of 'x'.*draw_sectors shows it"):
        draw_banks(request("global", [0], 4))


# --- trees -----------------------------------------------------------------------------------------------------------


@cuda.jit
def interleaved(x, y):
    buffer = cuda.shared.array(1024, float32)
    thread = cuda.threadIdx.x
    buffer[thread] = x[thread]
    cuda.syncthreads()
    distance = 1
    while distance < cuda.blockDim.x:
        if thread % (2 * distance) == 0:
            buffer[thread] += buffer[thread + distance]
        cuda.syncthreads()
        distance *= 2
    if thread == 0:
        y[0] = buffer[0]


@cuda.jit
def sequential(x, y):
    buffer = cuda.shared.array(1024, float32)
    thread = cuda.threadIdx.x
    buffer[thread] = x[thread]
    cuda.syncthreads()
    half = cuda.blockDim.x // 2
    while half > 0:
        if thread < half:
            buffer[thread] += buffer[thread + half]
        cuda.syncthreads()
        half //= 2
    if thread == 0:
        y[0] = buffer[0]


@cuda.jit
def butterfly(x, y):
    thread = cuda.threadIdx.x
    value = x[thread]
    for level in range(5):
        value += cuda.shfl_xor_sync(0xFFFFFFFF, value, 16 >> level)
    y[thread] = value


@cuda.jit
def apex(x, y):
    buffer = cuda.shared.array((2, 32), float32)
    thread = cuda.threadIdx.x
    y[thread] = block_sum(warp_sum(x[thread]), buffer)


@cuda.jit
def every_other(x, y):
    i = cuda.grid(1)
    y[i] = x[2 * i]


def traced(kernel, threads):
    return trace(kernel)[1, threads](np.ones(2 * threads, np.float32), np.zeros(threads, np.float32))


def segments(ax):
    return {
        found.get_gid(): [tuple(map(tuple, line.tolist())) for line in found.get_segments()]
        for found in ax.collections
        if str(found.get_gid()).startswith(("shuffle", "through"))
    }


@pytest.mark.parametrize("threads", [32, 128])
def test_the_interleaved_tree_goes_from_neighbour_to_neighbour_at_doubling_distance(threads):
    ax = traced(interleaved, threads).draw_tree()
    lines = segments(ax)["through shared memory (buffer)"]
    levels = threads.bit_length() - 1
    expected = {
        ((thread + 2**level, level), (thread, level + 1))
        for level in range(levels)
        for thread in range(0, threads, 2 ** (level + 1))
    }
    assert len(lines) == threads - 1
    assert set(lines) == expected
    assert len(artist(ax, "barrier")) == levels  # the last barrier is after the last flow
    assert len(artist(ax, "warp")) == threads // 32 - 1
    barriers = f"{levels} of the block's {levels + 1} barriers"
    assert ax.get_title(loc="left").endswith(f"\n{threads - 1} values through 'buffer'; {barriers}")


def test_the_sequential_tree_of_1024_threads_halves_them():
    lines = segments(traced(sequential, 1024).draw_tree())["through shared memory (buffer)"]
    expected = {
        ((thread + 512 // 2**level, level), (thread, level + 1))
        for level in range(10)
        for thread in range(512 // 2**level)
    }
    assert set(lines) == expected


def test_the_butterfly_exchanges_at_every_step_and_stays_within_its_warp():
    ax = traced(butterfly, 64).draw_tree()
    lines = segments(ax)
    assert list(lines) == ["shuffle"]
    assert set(lines["shuffle"]) == {
        ((thread ^ (16 >> level), level), (thread, level + 1)) for level in range(5) for thread in range(64)
    }
    assert not artist(ax, "barrier")
    assert len(artist(ax, "warp")) == 1


def test_apex_reduces_by_shuffles_then_halves_the_warps_in_shared_memory():
    counted = traced(apex, 128)
    seen = tree(counted.flows)
    assert sum(arrow.values for arrow in seen.arrows) == len(counted.flows.flows)
    by_shuffle = [arrow for arrow in seen.arrows if arrow.by == "shuffle"]
    through_memory = [arrow for arrow in seen.arrows if arrow.by != "shuffle"]
    assert len(by_shuffle) == 5 * 128
    assert all(arrow.source // 32 == arrow.target // 32 for arrow in by_shuffle)
    halving = [(arrow.source, arrow.target) for arrow in through_memory if arrow.source]
    assert sorted(halving) == [(32, 0), (64, 0), (96, 32)]
    broadcast = [arrow.target for arrow in through_memory if not arrow.source]
    assert sorted(broadcast) == list(range(1, 128))
    lines = segments(counted.draw_tree())
    assert len(lines["shuffle"]) == len(by_shuffle)
    assert len(lines["through shared memory (buffer)"]) == len(through_memory)


@pytest.mark.parametrize("to", [0, 37])
def test_a_tree_can_be_cut_to_what_reaches_one_thread(to):
    counted = traced(butterfly, 64)
    warp = range(32 * (to // 32), 32 * (to // 32) + 32)
    lines = segments(counted.draw_tree(to=to))["shuffle"]
    # In the last step the thread takes one value; in each step before, twice as many threads take one.
    assert [sum(start == step for (_, start), _ in lines) for step in range(5)] == [16, 8, 4, 2, 1]
    assert sorted({source for (source, _), _ in lines} | {to}) == list(warp)  # each value comes once
    assert len(lines) == 31
    with pytest.raises(ValueError, match="to is a thread of the block, 0 to 63; got 64"):
        counted.draw_tree(to=64)


def test_a_tree_can_be_cut_to_steps_and_threads():
    counted = traced(butterfly, 64)
    assert len(segments(counted.draw_tree(steps=3))["shuffle"]) == 2 * 64  # steps 0, 1, 2: two go by
    assert len(segments(counted.draw_tree(threads=32))["shuffle"]) == 5 * 32
    assert "values from or to" not in tree(counted.flows, threads=32).numbers
    second = segments(counted.draw_tree(steps=range(4, 6), threads=range(32, 64)))["shuffle"]
    assert sorted(source for (source, _), _ in second) == list(range(32, 64))
    assert {start for (_, start), _ in second} == {4}


def test_arrows_from_threads_that_are_not_shown_are_marked():
    counted = traced(sequential, 256)
    seen = tree(counted.flows, threads=32)
    assert (
        seen.numbers
        == "31 values through 'buffer', 96 values from or to threads not shown; 8 of the block's 9 barriers"
    )
    assert sorted(seen.crossing)[0][:4] == (32, 0, 2, 3)
    assert {(arrow.start, arrow.end) for arrow in seen.crossing} == {(0, 1), (1, 2), (2, 3)}
    ax = counted.draw_tree(threads=32)
    (shafts,) = artist(ax, "from or to a thread not shown")
    segments = shafts.get_segments()
    assert [round(x) for _, (x, _) in segments] == [*range(32)] * 3
    assert all(begin > end for (begin, _), (end, _) in segments)  # from the side of the higher threads
    assert not artist(counted.draw_tree(), "from or to a thread not shown")
    gives = tree(counted.flows, threads=range(32, 64))  # these give all they have
    assert {arrow.target for arrow in gives.crossing if arrow.source in gives.threads} == set(range(32))


def test_a_tree_of_a_trace_that_could_not_keep_all_flows_says_so():
    counted = traced(butterfly, 64)
    assert "keeps" not in tree(counted.flows).numbers
    counted.flows.flows *= 70
    assert tree(counted.flows).numbers.endswith("; the trace keeps the first 20,000 values only")


def test_a_block_whose_threads_keep_to_themselves_has_no_tree():
    with pytest.raises(ValueError, match=r"no thread of the first block gave a value to another"):
        traced(every_other, 32).draw_tree()


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"steps": 1.5}, TypeError, r"steps takes an int \(the first so many\) or a range, not 1.5"),
        ({"threads": True}, TypeError, "threads takes an int"),
        ({"threads": range(64, 70)}, ValueError, r"threads must lie within range\(64\), without gaps.*range\(64, 70\)"),
        ({"threads": range(0, 64, 2)}, ValueError, "without gaps"),
        ({"steps": 0}, ValueError, r"steps must lie within range\(6\)"),
        (
            {"threads": range(16, 18), "steps": 1},
            ValueError,
            "no value goes from or to threads 16 to 17 in steps 0 to 0",
        ),
    ],
)
def test_a_tree_of_what_is_not_there_is_refused(arguments, error, text):
    with pytest.raises(error, match=text):
        traced(butterfly, 64).draw_tree(**arguments)


# --- heat maps -------------------------------------------------------------------------------------------------------


@cuda.jit
def triangle(table, cube, totals):
    i = cuda.threadIdx.x
    for j in range(i + 1):
        table[i, j] = cube[0, j, i]
        cuda.atomic.add(totals, j, 1)


def test_a_heat_map_shows_how_often_each_element_was_accessed():
    table, cube, totals = np.zeros((8, 12), np.float32), np.zeros((2, 8, 8), np.float32), np.zeros(40, np.int32)
    counted = trace(triangle)[1, 8](table, cube, totals)
    lower = np.tril(np.ones((8, 8)))

    grid = heat_grid(counted.array("table"), "st")
    np.testing.assert_array_equal(grid.cells, np.pad(lower, ((0, 0), (0, 4))))
    assert grid.subject == "global array 'table', shape (8, 12)"
    assert grid.numbers == "36 stores; 36 of 96 elements touched (38%)"
    grid = heat_grid(counted.array("cube"), "ld")
    np.testing.assert_array_equal(grid.cells, np.concatenate([lower.T, np.zeros((8, 8))]))
    assert not heat_grid(counted.array("cube"), "st").cells.any()
    grid = heat_grid(counted.array("totals"), "ld")
    assert grid.cells.shape == (2, 32)
    np.testing.assert_array_equal(grid.cells[0], [*range(8, 0, -1), *[0] * 24])
    assert np.isnan(grid.cells[1, 8:]).all()


def test_a_large_array_is_binned_and_says_so():
    counted = traced(every_other, 32)
    heat = counted.array("x")
    heat.shape, heat._counts["ld"] = (300, 100), np.tile(np.arange(2, dtype=np.uint32), 15_000)
    grid = heat_grid(heat, "ld")
    assert grid.cells.shape == (60, 50)
    assert (grid.tall, grid.wide) == (5, 2)
    np.testing.assert_allclose(grid.cells, 0.5)
    assert grid.binning == "accesses per element, mean of 5 x 2 elements per cell"


def test_bins_at_the_border_average_what_is_there():
    heat = traced(every_other, 32).array("x")
    heat.shape, heat._counts["ld"] = (65, 3), np.full(195, 4, np.uint32)
    np.testing.assert_allclose(heat_grid(heat, "ld").cells, 4)


def test_an_array_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match=r"kernel 'every_other' has no array 'z'; it has 'x', 'y'"):
        traced(every_other, 32).array("z")


# --- all of them -----------------------------------------------------------------------------------------------------


@cuda.jit
def through_shared(x, y):
    buffer = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    buffer[2 * i] = x[i]
    y[i] = buffer[2 * i]


def test_a_trace_picks_the_costliest_request_of_a_line_in_the_memory_that_is_drawn():
    counted = traced(through_shared, 32)
    copy = counted.first_line + 4
    assert "global load of 'x'" in counted.draw_sectors(copy).get_title(loc="left")
    assert "shared store of 'buffer'" in counted.draw_banks(copy).get_title(loc="left")
    chosen = counted.requests(copy, array="x")[0]
    assert "global load of 'x'" in counted.draw_sectors(chosen).get_title(loc="left")
    with pytest.raises(ValueError, match="draw_sectors shows it"):
        counted.draw_banks(copy, array="x")
    with pytest.raises(ValueError, match=f"line {copy - 1} of kernel 'through_shared' made no memory request"):
        counted.draw_sectors(copy - 1)


def test_the_two_loads_of_a_line_are_told_apart_by_where_they_begin():
    adding = traced(sequential, 64).first_line + 9
    counted = trace(sequential, keep=adding)[1, 64](np.zeros(64, np.float32), np.zeros(1, np.float32))
    requests = [one for one in counted.requests(adding, "ld") if one.warp == 0]
    titles = [counted.draw_banks(one).get_title(loc="left").splitlines() for one in requests]
    assert {first.rpartition(", ")[2] for first, _ in titles} >= {"lane 0 at byte 0", "lane 0 at byte 128"}
    assert all(second.startswith("block (0, 0, 0), warp 0: 1 wavefront, ") for _, second in titles)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("8",), TypeError, "line is the number of a line of the kernel's source, an int, not '8'"),
        ((True,), TypeError, "an int, not True"),
        ((8, "load"), ValueError, 'operation is "ld", "st", "atom", "ldgsts" or None for any, not \'load\''),
    ],
)
def test_what_names_no_request_is_refused(arguments, error, text):
    for draw in (traced(sequential, 32).draw_sectors, traced(sequential, 32).draw_banks):
        with pytest.raises(error, match=text):
            draw(*arguments)


@pytest.mark.parametrize(
    ("keep", "error", "text"),
    [
        ("8", TypeError, "keep takes line numbers of the kernel's source, an int or several, not '8'"),
        (2.5, TypeError, "an int or several, not 2.5"),
        ([8, True], TypeError, "an int or several, not"),
        ([8, 0], ValueError, "from 1 on, not 0"),
        (100_000, ValueError, r"keep=100000: kernel 'sequential' has lines \d+ to \d+, and no function"),
    ],
)
def test_lines_to_keep_that_are_none_are_refused(keep, error, text):
    with pytest.raises(error, match=text):
        trace(sequential, keep=keep)[1, 32](np.zeros(32, np.float32), np.zeros(1, np.float32))


def test_a_line_of_a_device_function_can_be_kept():
    line = traced(apex, 64).by_line()[-1].line
    assert not line.file.endswith("test_pictures.py")
    kept = trace(apex, keep=line.number)[1, 64](np.zeros(64, np.float32), np.zeros(64, np.float32))
    assert kept.by_line()[-1].line == line


def test_the_heat_of_a_shared_array_names_the_blocks_that_it_adds_up():
    counted = trace(through_shared)[3, 32](np.ones(32, np.float32), np.zeros(32, np.float32))
    grid = heat_grid(counted.array("buffer"), "st", counted.blocks)
    assert grid.subject == "shared array 'buffer', shape (64,), those of 3 blocks together"
    assert grid.total == 3 * 32
    assert "blocks" not in heat_grid(counted.array("x"), "ld", counted.blocks).subject
    assert "blocks" not in heat_grid(counted.array("buffer"), "st", 1).subject


def test_figures_of_a_script_are_gone_with_their_axes():
    counted = traced(sequential, 32)
    axes = [counted.draw_tree() for _ in range(25)]
    assert not pyplot.get_fignums()
    axes[0].figure.savefig(BytesIO())


def test_pyplot_has_the_figures_of_a_notebook_to_show_and_close_them(monkeypatch):
    monkeypatch.setattr(matplotlib, "get_backend", lambda: "module://matplotlib_inline.backend_inline")
    counted = traced(butterfly, 32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(25):
            counted.draw_tree()
    assert len(pyplot.get_fignums()) == 25


def test_a_comparison_has_a_bar_for_every_metric_of_both():
    one, other = traced(sequential, 64), traced(butterfly, 64)
    ax = one.draw_comparison(other)
    names = one.compare(other).metrics
    first, second = ax.containers
    assert len(first) == len(second) == len(names)
    for bar, twin, (mine, others) in zip(first, second, names.values(), strict=True):
        assert bar.get_width() * others == pytest.approx(twin.get_width() * mine)
        assert max(bar.get_width(), twin.get_width()) == 1
    with pytest.raises(TypeError, match="compare takes another Trace, not int"):
        one.draw_comparison(3)
    grid = "grid (1, 1, 1), block (64, 1, 1)"
    names = [text.get_text() for text in one.draw_comparison(one).get_legend().get_texts()]
    assert names == [f"sequential (1), {grid}", f"sequential (2), {grid}"]
    assert one.draw_comparison(one, labels=("a", "b")).get_title(loc="left") == "a and b"


def test_pictures_fit_into_axes_that_are_given():
    counted = traced(sequential, 32)
    _, several = pyplot.subplots(2, 3)
    line = counted.first_line + 4
    draws = [
        lambda ax: counted.draw_sectors(line, ax=ax),
        lambda ax: counted.draw_banks(line, ax=ax),
        lambda ax: counted.draw_tree(ax=ax),
        lambda ax: counted.draw_comparison(counted, ax=ax),
    ]
    for draw, ax in zip(draws, several.flat, strict=False):
        assert draw(ax) is ax
    assert len(pyplot.get_fignums()) == 1


def test_what_conflicts_and_moves_in_vain_shows_in_grey_too():
    """Colours that mean different things differ in lightness, or shape and hatch tell them apart."""
    ax = draw_sectors(request("global", strided(8), 4))
    light = [
        np.dot(artist(ax, gid)[0].get_facecolor()[0][:3], (0.3, 0.59, 0.11)) for gid in ("bytes used", "sector moved")
    ]
    assert all(lighter - darker > 0.4 for darker, lighter in pairwise(light))
    assert 1 - light[1] > 0.08  # against paper
    ax = draw_banks(request("shared", [0, 0, 128, 8], 4))
    looks = {
        found.get_gid(): (len(found.get_paths()[0].vertices), tuple(found.get_facecolor()[0]))
        for found in ax.collections
        if isinstance(found, PathCollection)
    }
    assert len(looks) == 2
    ax = traced(apex, 64).draw_tree()
    dashes = {found.get_gid(): found.get_linestyle()[0][1] for found in ax.collections if found.get_gid()}
    assert dashes["shuffle"] is not None
    assert dashes["through shared memory (buffer)"] is None


def test_tracing_does_not_import_matplotlib():
    code = "import normlab.sim.tracing, sys; print({'matplotlib', 'jinja2'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
