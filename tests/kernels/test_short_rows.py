"""Backward of short rows: tiles come and go as whole vectors, whatever a row's length; every form, both ends."""

import collections
import itertools
from dataclasses import replace

import devices
import ml_dtypes
import numpy as np
import pytest
from counting import COPIED, counter
from draws import Case
from examine import examine_backward
from kernels.test_invariance import (
    assert_the_same_whenever_and_however_it_runs,
    few_stay,
    random_case,
    results,
    sanitized,
    shifted,
)
from kernels.test_plans import BYTES_BACKWARD, CAPABILITIES, Form, launches
from machine_code import resources_in_float32

from normlab.engine import launch, using
from normlab.host.checks import step_of
from normlab.kernels import BackwardProblem, Problem
from normlab.kernels.backward import final_sums
from normlab.kernels.backward.short_rows import plan as short_rows
from normlab.kernels.backward.short_rows import tiles
from normlab.kernels.plan import Refusal
from normlab.kernels.tiles import ELEMENTS, STAGES, row_finder, tile_for

BFLOAT16 = ml_dtypes.bfloat16
STEP = step_of("backward", "pipelined")
PAIRS = [(BFLOAT16, BFLOAT16), (np.float16, np.float16), (np.float32, np.float32), (BFLOAT16, np.float32)]
PAIRS += [(np.float32, np.float16)]
# One row, a tile and a part of one, several blocks; of one lane and of several; odd, even, a multiple of eight.
SHAPES = [(1, 1), (700, 1), (70, 2), (137, 7), (40, 8), (33, 12), (50, 31), (20, 32), (9, 226)]
paths = pytest.mark.parametrize("memory_efficient", [False, True, "exact"], ids=["saved", "recompute", "exact"])
both_paths = pytest.mark.parametrize("memory_efficient", [False, True], ids=["saved", "recompute"])


class Memory:
    """Scratch without contents."""

    empty = staticmethod(np.empty)


def problem_of(case: Case, grad_input: np.ndarray, memory_efficient: bool = False, row_sums=None) -> BackwardProblem:
    """The operands, with made-up statistics."""
    n1, n2 = grad_input.shape
    mean = None if memory_efficient or case.rms else np.zeros(n1, np.float32)
    gradients = np.empty(n2, case.weight.dtype), np.empty(n2, case.weight.dtype)
    return BackwardProblem(
        case.grad_output, case.x, mean, np.ones(n1, np.float32), case.weight, case.bias, np.float32(0.01), case.rms,
        memory_efficient, grad_input, *gradients, row_sums,
    )  # fmt: skip


@paths
@pytest.mark.parametrize(("n1", "n2"), SHAPES)
def test_short_rows_are_right(n1, n2, memory_efficient):
    for number, (t, v) in enumerate(PAIRS):
        rms = (n1 + number) % 2 == 1
        examine_backward(random_case(n1, n2, t, rms=rms, parameters=v), None, STEP, memory_efficient)


@pytest.mark.parametrize("rms", [False, True])
def test_clamped_gammas_are_within_the_bounds_in_short_rows(rms):
    case = random_case(37, 5, BFLOAT16, rms=rms)
    weight = np.array([0.0, -0.0, 1e-6, -1e-6, 0.75]).astype(case.weight.dtype)
    examine_backward(replace(case, weight=weight), None, STEP, True)


@both_paths
@pytest.mark.parametrize("parameters", [(True, False), (False, True), (False, False)])
def test_short_rows_without_parameters_are_right(parameters, memory_efficient):
    case = random_case(37, 5, BFLOAT16)
    given = [one if there else None for one, there in zip((case.weight, case.bias), parameters, strict=True)]
    examine_backward(replace(case, weight=given[0], bias=given[1]), None, STEP, memory_efficient)


PER_WARP, PER_BLOCK = 0, 10**6  # shared tiles per multiprocessor, at most


def small_tiles(monkeypatch, shared=PER_WARP):
    """Let a block have two warps and the smallest tiles, so that few rows are many tiles; a tile per warp or block."""
    monkeypatch.setattr(tiles, "STAGE_BYTES", 0)
    monkeypatch.setattr(short_rows, "FEW_TILES", {True: shared, False: shared})
    own = short_rows.layout_for

    def narrow(*how):
        chosen = own(*how)
        return chosen._replace(layout=chosen.layout._replace(warps=2))

    monkeypatch.setattr(short_rows, "layout_for", narrow)


TURNS = [(590, 3, BFLOAT16), (300, 9, np.float32), (150, 24, np.float16), (75, 63, BFLOAT16)]
turns = pytest.mark.parametrize(("n1", "n2", "dtype"), TURNS, ids=str)


@turns
@both_paths
@pytest.mark.parametrize("blocks", [1, 2])
def test_many_tiles_a_warp_are_right(n1, n2, dtype, memory_efficient, blocks, monkeypatch):
    """Each stage is filled several times; the last tile has a part of its rows, and a warp no last tile."""
    small_tiles(monkeypatch)
    few_stay(monkeypatch, blocks)
    with using("simulator"):
        examine_backward(random_case(n1, n2, dtype), None, STEP, memory_efficient)


@turns
@both_paths
def test_nothing_is_found_in_short_rows(n1, n2, dtype, memory_efficient, monkeypatch):
    """Not even beside the matrix, whose last vector reaches past its end."""
    small_tiles(monkeypatch)
    few_stay(monkeypatch)
    with using("simulator"):
        sanitized(random_case(n1, n2, dtype), STEP, memory_efficient)


@turns
def test_tiles_that_warps_share_are_right_and_nothing_is_found(n1, n2, dtype, monkeypatch):
    small_tiles(monkeypatch, PER_BLOCK)
    few_stay(monkeypatch, 2)
    with using("simulator"):
        for memory_efficient in (False, True):
            examine_backward(random_case(n1, n2, dtype), None, STEP, memory_efficient)
        sanitized(random_case(n1, n2, dtype), STEP, False)


@both_paths
def test_a_row_s_bits_do_not_depend_on_the_number_of_rows(memory_efficient, monkeypatch):
    monkeypatch.setattr(final_sums, "sums_of", lambda *how: ())
    small_tiles(monkeypatch)
    for n1, n2, dtype in TURNS:
        case = random_case(n1, n2, dtype)
        want = results(case, STEP, memory_efficient)[0]
        for few in (1, 7, n1 // 2):
            first = replace(case, x=case.x[:few], grad_output=case.grad_output[:few])
            assert results(first, STEP, memory_efficient)[0] == want[: few * n2 * case.x.itemsize]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(short_rows, "FEW_TILES", {True: PER_BLOCK, False: PER_BLOCK})
            assert results(case, STEP, memory_efficient)[0] == want


@both_paths
def test_the_bits_depend_on_no_schedule(memory_efficient, monkeypatch):
    small_tiles(monkeypatch)
    assert_the_same_whenever_and_however_it_runs(random_case(*TURNS[0]), STEP, memory_efficient)


@both_paths
def test_the_neighbours_of_a_row_do_not_reach_it(memory_efficient):
    """Whatever they are: rows of NaN and of infinity leave no trace in the rows between them."""
    for n2 in (1, 3, 13, 31):
        case = random_case(41, n2, BFLOAT16)
        x, dy = case.x.copy(), case.grad_output.copy()
        dy[::2] = [np.nan]
        x[4] = np.inf
        want, got = (
            np.frombuffer(results(one, STEP, memory_efficient)[0], BFLOAT16).reshape(41, n2)
            for one in (case, replace(case, x=x, grad_output=dy))
        )
        assert got[1::2].tobytes() == want[1::2].tobytes()
        assert not np.isfinite(got[::2]).any()


def test_the_exact_mode_has_the_means_of_every_row():
    case, means = random_case(37, 13, BFLOAT16), []
    for correction in (0, 13):
        row_sums = np.full((3, 37), np.nan, np.float32)
        row_sums[0] = correction
        with using("simulator"):
            STEP.run(launch, Memory, problem_of(case, np.empty_like(case.x), True, row_sums))
        means.append(row_sums[1:])
    difference = np.repeat([[0.0], [1.0]], 37, 1)  # of mean(g), and of mean(g x̂)
    np.testing.assert_allclose(means[1] - means[0], difference, atol=1e-5)


@pytest.mark.parametrize("n2", [1, 5, 24])
def test_no_element_beside_grad_input_is_written(n2):
    case = random_case(37, n2, BFLOAT16)
    memory = np.full(37 * n2 + 64, 7, BFLOAT16)
    start = 16 + (-memory.ctypes.data % 16) // 2
    grad_input = memory[start : start + 37 * n2].reshape(37, n2)
    with using("simulator"):
        STEP.run(launch, Memory, problem_of(case, grad_input))
    assert (memory[:start] == 7).all()
    assert (memory[start + grad_input.size :] == 7).all()


@both_paths
def test_views_that_begin_in_the_middle_of_a_vector_are_right(memory_efficient):
    """As far as asynchronous copies are so narrow; a view of odd 16-bit elements is an earlier step's."""
    for dtype, offset in ((np.float32, 1), (BFLOAT16, 2), (BFLOAT16, 1)):
        case = random_case(37, 7, dtype)
        moved = replace(case, grad_output=shifted(case.grad_output, offset))
        examine_backward(moved, None, STEP, memory_efficient)


def test_whole_vectors_are_copied_and_stored():
    case, (launch, found) = random_case(256, 7, BFLOAT16), counter()
    STEP.run(launch, Memory, problem_of(case, np.zeros_like(case.x)))
    vectors = 256 * 7 // 8
    copied = found[0][COPIED.format("requests")]
    assert copied <= 2 * -(-vectors // 28) + 2 * 256 // 32, "of both matrices 16 bytes per lane, and the statistics"


@pytest.mark.parametrize("sizes", BYTES_BACKWARD, ids=str)
@pytest.mark.parametrize("statistics", [1, 2])
def test_layouts_give_every_column_to_one_lane_and_every_array_its_place(sizes, statistics):
    full = 16 // max(sizes)
    for n2 in range(1, 300):
        chosen = tiles.layout_for(n2, sizes, statistics)
        longest = (255 if full == 8 else 180) if n2 % full else 127
        assert (chosen is None) == (n2 > longest)
        if chosen is None:
            continue
        assert len(chosen.why) > 20
        shared = short_rows.few_rows_layout(chosen.layout)
        assert shared.rows == shared.warps * shared.groups, "a row per lane group of the block"
        for layout in (chosen.layout, shared):
            check_places(layout, n2, sizes, statistics)


def check_places(layout, n2, sizes, statistics):
    """Every column is a lane's, and every array has its place in shared memory."""
    vectors, width, span, _ = layout.thread_map.loop
    assert (vectors - 1) * span < n2 <= vectors * span, "no vector too many"
    assert vectors * width <= ELEMENTS
    assert n2 % width == 0
    assert layout.turns * 32 == layout.rows * layout.lanes
    places = [
        turn_place(layout, turn) + group * layout.neighbours
        for turn in range(layout.turns)
        for group in range(layout.groups)
    ]
    assert sorted(places) == list(range(layout.rows)), "each row is a lane group's, once"
    assert all(layout.tile * size % 16 == 0 for size in sizes), "a tile begins with a vector"
    stages = layout.warps // layout.warps_per_tile * STAGES
    ends = [
        stages * layout.tile * sizes[0],
        stages * layout.tile * (sizes[0] + sizes[1]),
        stages * (layout.tile * (sizes[0] + sizes[1]) + 4 * layout.rows * statistics),
    ]
    assert [layout.grads_at * sizes[1], 4 * layout.statistics_at, layout.results_at * sizes[2]] == ends
    if sizes[1] != sizes[2]:  # otherwise results take the place of grad_output
        ends.append(ends[-1] + layout.warps // layout.warps_per_tile * layout.tile * sizes[2])
    assert layout.shared_bytes == max(ends[-1], 4 * layout.warps * 2 * n2), "both sums of each warp's columns fit, too"


@pytest.mark.parametrize("capability", CAPABILITIES, ids=str)
def test_plans_fit_a_gpu_and_the_step_s_chains_are_as_long(capability):
    device, taken = devices.of(capability), 0
    lengths = 1, 2, 7, 8, 31, 64, 100, 129, 255
    for n2, dtype, saved in itertools.product(lengths, ("bfloat16", "float32"), ("input", "output")):
        plan = STEP.plan(Problem("backward", "layer", 10**6, n2, dtype, saved=saved), device)
        if plan.step != "short_rows":
            assert n2 > 64, "larger tiles than a block's shared memory"
            continue
        taken += 1
        assert plan.work[0].shared_bytes <= device.shared_bytes
        for own, all_plans in ((plan.rows, STEP.row_chains(n2)), (plan.columns, STEP.column_chains(10**6, n2))):
            assert own.terms <= all_plans.terms
            assert own.merges <= all_plans.merges
        assert any("per tile" in line for line in plan.layout.words)
    assert taken >= 24


def test_other_rows_are_not_taken_as_tiles():
    def step(n2, dtype="bfloat16", **how):
        return STEP.plan(Problem("backward", "layer", 1000, n2, dtype, **how), devices.of((9, 0))).step

    lengths = {120: "short_rows", 128: "pipelined", 129: "short_rows", 255: "short_rows", 257: "pipelined"}
    assert {n2: step(n2) for n2 in lengths} == lengths
    assert (step(7, alignment=4), step(7, alignment=2)) == ("short_rows", "fused")
    assert (step(7, "float64"), step(7, "float32", alignment=4)) == ("apex", "short_rows")
    added = Problem("backward", "layer", 9, 64, residual=True).described()
    assert isinstance(short_rows.plan(added, devices.of((9, 0))), Refusal)


def test_few_rows_are_tiles_only_if_many_are():
    """Float32 rows of 249 columns are none: a block does not hold many rows' tiles. Another kernel has other bits."""
    for n2, device in itertools.product((100, 225, 249), map(devices.of, CAPABILITIES)):
        steps = {STEP.plan(Problem("backward", "layer", n1, n2, "float32"), device).step for n1 in (1, 100, 10**6)}
        assert len(steps) == 1, (n2, device)


@pytest.mark.parametrize("capability", CAPABILITIES, ids=str)
def test_tiles_are_larger_where_rows_are_many_and_a_block_has_the_memory(capability):
    device = devices.of(capability)
    for n2, dtype in ((63, "bfloat16"), (119, "bfloat16"), (129, "bfloat16"), (161, "bfloat16"), (129, "float32")):
        many, fewer = (STEP.plan(Problem("backward", "layer", n1, n2, dtype), device).layout for n1 in (10**7, 17_000))
        base = tiles.layout_for(n2, (2, 2, 2) if dtype == "bfloat16" else (4, 4, 4), 2).layout
        assert many.shared_bytes <= device.shared_bytes
        larger = base._replace(turns=2 * base.turns)
        fits = larger.shared_bytes <= device.shared_bytes and larger.stage_bytes <= tiles.MOST_BYTES[base.lanes == 32]
        assert (many.turns > base.turns) == fits, "lane groups would wait for each other"
        assert fewer.turns == base.turns, "larger tiles would leave warps without one"


def turn_place(layout, turn):
    return row_finder(layout).py_func(turn)


@pytest.mark.parametrize("itemsize", [2, 4])
def test_lane_groups_as_many_rows_apart_as_they_have_lanes_wait_for_no_bank(itemsize):
    """Whatever a row's length and its vectors' width: shared memory answers 128 bytes at a time, a word per bank."""
    for n2 in range(9, 256):  # shorter rows have one lane: a warp's 32 rows reach further than the banks
        layout = tile_for(n2, min(n2 & -n2, 16 // itemsize), (itemsize, 0, itemsize), 0, 0)
        layout = layout._replace(turns=max(layout.lanes, layout.turns))
        if layout.lanes * layout.width < n2 & -n2:
            continue  # two or four whole vectors, of which a lane group reads every other one at a time
        lane_bytes = layout.width * itemsize
        at_once = min(32, 128 // lane_bytes)
        for first in range(0, 32, at_once):
            banks = collections.defaultdict(set)
            for lane in range(first, first + at_once):
                row, column = lane // layout.lanes * layout.neighbours, lane % layout.lanes * layout.width
                begin = (row * n2 + column) * itemsize
                if column < n2:
                    for byte in range(begin, begin + lane_bytes):
                        banks[byte // 4 % 32].add(byte // 4)
            assert {len(words) for words in banks.values()} <= {1}, n2


@pytest.mark.parametrize(
    ("n2", "dtype", "most"),  # rows: of one shared tile, of a block without or with shared tiles, of shared tiles
    [(31, "bfloat16", (64, 128, 16896)), (44, "float32", (32, 64, 8448)), (229, "float16", (8, 16, 8448))],
)
def test_few_rows_share_tiles_and_fewer_need_no_second_kernel(n2, dtype, most):
    def found(n1):
        plan = STEP.plan(Problem("backward", "layer", n1, n2, dtype), devices.of((9, 0)))
        longest = STEP.column_chains(n1, n2)
        assert plan.columns.terms <= longest.terms
        assert plan.columns.merges <= longest.merges
        return plan.layout.warps_per_tile > 1, len(plan.work)

    a_tile, a_block, shared = most
    whole_warp = n2 > 128
    assert (found(1), found(a_tile), found(a_tile + 1)) == ((True, 1), (True, 1), (whole_warp, 1))
    assert (found(a_block), found(a_block + 1)) == ((whole_warp, 1), (True, 2))
    assert (found(shared), found(shared + 1)) == ((True, 2), (False, 2))


KERNELS = [(1, BFLOAT16), (31, np.float16), (24, np.float32), (255, BFLOAT16)]


@pytest.mark.parametrize(("n2", "dtype"), KERNELS, ids=str)
def test_kernels_spill_nothing_and_compute_in_float32(n2, dtype):
    pytest.importorskip("numba_cuda", reason="kernels are assembled by numba-cuda, which has no wheels here")
    form = Form(dtype, dtype, memory_efficient=n2 == 255)
    one = next(one for one in launches(STEP, 10**5, n2, form) if one.name == "backward_short_rows")
    taken = resources_in_float32(one.work.kernel, one.types)
    assert (taken.local_bytes, taken.spill_stores) == (0, 0)
