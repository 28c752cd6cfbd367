"""Forward of short rows: tiles come and go as whole vectors, whatever a row's length; every dtype, both norms."""

import itertools
from dataclasses import replace

import devices
import ml_dtypes
import numpy as np
import pytest
from counting import COPIED, counter
from draws import Case
from examine import examine_forward, forward
from kernels.test_invariance import assert_the_same_whenever_and_however_it_runs, random_case, sanitized, shifted
from kernels.test_plans import BYTES, CAPABILITIES, Form, launches
from machine_code import resources_in_float32

from normlab.engine import launch, using
from normlab.host.checks import step_of
from normlab.kernels import ForwardProblem, Problem
from normlab.kernels.forward import short_rows
from normlab.kernels.plan import Refusal
from normlab.kernels.tiles import ELEMENTS

BFLOAT16 = ml_dtypes.bfloat16
STEP = step_of("forward", "clusters")
PAIRS = [(BFLOAT16, BFLOAT16), (np.float16, np.float16), (np.float32, np.float32), (BFLOAT16, np.float32)]
PAIRS += [(np.float32, np.float16)]
# One row, a tile and a part of one, several blocks; of one lane and of several; odd and even; the longest.
SHAPES = [(1, 1), (700, 1), (70, 3), (137, 7), (33, 12), (137, 24), (50, 31), (40, 36), (9, 97), (19, 127), (9, 255)]
SHAPES += [(9, 511)]


def take_all(monkeypatch):
    """Let few rows come as tiles, too."""
    monkeypatch.setattr(short_rows, "TILED", tuple(one._replace(few=0) for one in short_rows.TILED))
    uneven = {itemsize: one._replace(few=0) for itemsize, one in short_rows.UNEVEN_TILED.items()}
    monkeypatch.setattr(short_rows, "UNEVEN_TILED", uneven)
    monkeypatch.setattr(short_rows, "LONGER_TILED", short_rows.LONGER_TILED._replace(few=0))


def step_for(n1: int, n2: int, dtype="bfloat16", **how) -> str:
    return STEP.plan(Problem("forward", "layer", n1, n2, dtype, **how), devices.of((9, 0))).step


@pytest.mark.parametrize(("n1", "n2"), SHAPES)
def test_tiles_are_right_forward(n1, n2, monkeypatch):
    take_all(monkeypatch)
    assert step_for(n1, n2) == "short_rows"
    for number, (t, v) in enumerate(PAIRS):
        examine_forward(random_case(n1, n2, t, rms=(n1 + number) % 2 == 1, parameters=v), STEP)


@pytest.mark.parametrize("parameters", [(True, False), (False, True), (False, False)])
def test_tiles_without_parameters_are_right_forward(parameters, monkeypatch):
    take_all(monkeypatch)
    case = random_case(37, 5, BFLOAT16)
    given = [one if there else None for one, there in zip((case.weight, case.bias), parameters, strict=True)]
    examine_forward(replace(case, weight=given[0], bias=given[1]), STEP)


def small_tiles(monkeypatch):
    """Let one block of two warps take the smallest tiles, so that few rows are many tiles of a warp."""
    take_all(monkeypatch)
    for name, value in (("STAGE_BYTES", 0), ("WARPS", 2), ("RESIDENT", 1), ("WAVES", 1)):
        monkeypatch.setattr(short_rows, name, value)
    devices.plan_for(monkeypatch, multiprocessors=1)


TURNS = [(200, 3, BFLOAT16), (150, 9, np.float32), (75, 36, np.float16), (75, 63, BFLOAT16), (45, 127, np.float32)]
turns = pytest.mark.parametrize(("n1", "n2", "dtype"), TURNS, ids=str)


@turns
@pytest.mark.parametrize("rms", [False, True], ids=["layer", "rms"])
def test_many_tiles_a_warp_are_right_forward(n1, n2, dtype, rms, monkeypatch):
    """Each stage is filled several times; the last tile has a part of its rows, and a warp no last tile."""
    small_tiles(monkeypatch)
    with using("simulator"):
        examine_forward(random_case(n1, n2, dtype, rms), STEP)


@turns
def test_nothing_is_found_in_tiles_forward(n1, n2, dtype, monkeypatch):
    """Not even beside the matrix, whose last vector reaches past its end."""
    small_tiles(monkeypatch)
    with using("simulator"):
        sanitized(random_case(n1, n2, dtype), STEP, None)


def test_a_short_row_s_bits_depend_neither_on_the_number_of_rows_nor_on_the_grid(monkeypatch):
    """Nor on whether rows are so few that they are no tiles; views of half a vector, too."""
    for n1, n2, dtype in [*TURNS, (40, 36, np.float32)]:
        case = random_case(n1, n2, dtype)
        case = replace(case, x=shifted(case.x, 2)) if n2 % 2 == 0 else case
        with monkeypatch.context() as patch, using("simulator"):
            few = [forward(replace(case, x=case.x[:n1]), STEP) for n1 in (1, 7, n1)]
            take_all(patch)
            want = forward(case, STEP)
            small_tiles(patch)
            for got in (*few, forward(case, STEP)):
                assert [one.tobytes() for one in got] == [one[: len(got[0])].tobytes() for one in want]


def test_the_bits_of_tiles_depend_on_no_schedule(monkeypatch):
    small_tiles(monkeypatch)
    assert_the_same_whenever_and_however_it_runs(random_case(*TURNS[0]), STEP)


def test_the_neighbours_of_a_short_row_do_not_reach_it_forward(monkeypatch):
    """Whatever they are: rows of NaN and of infinity leave no trace in the rows between them."""
    take_all(monkeypatch)
    for n2 in (1, 3, 13, 31):
        case = random_case(41, n2, BFLOAT16)
        x = case.x.copy()
        x[::2] = np.nan
        x[4] = np.inf
        want, got = forward(case, STEP), forward(replace(case, x=x), STEP)
        for one, other in zip(want, got, strict=True):
            assert other[1::2].tobytes() == one[1::2].tobytes()
        assert not np.isfinite(got[2][::2]).any()


def problem_of(case: Case, output: np.ndarray) -> ForwardProblem:
    statistics = np.empty(len(case.x), np.float32), np.empty(len(case.x), np.float32)
    return ForwardProblem(case.x, case.weight, case.bias, np.float32(case.eps), output, *statistics)


@pytest.mark.parametrize("n2", [1, 5, 63])
def test_no_element_beside_the_tiles_is_written(n2, monkeypatch):
    take_all(monkeypatch)
    case = random_case(37, n2, BFLOAT16)
    memory = np.full(37 * n2 + 64, 7, BFLOAT16)
    start = 16 + (-memory.ctypes.data % 16) // 2
    output = memory[start : start + 37 * n2].reshape(37, n2)
    with using("simulator"):
        short_rows.plan(problem_of(case, output), devices.of((9, 0))).launch(launch, None, problem_of(case, output))
    assert (memory[:start] == 7).all()
    assert (memory[start + output.size :] == 7).all()
    assert output.tobytes() == forward(case, STEP)[0].tobytes()


def test_views_that_begin_in_the_middle_of_a_vector_are_right_forward(monkeypatch):
    """As far as asynchronous copies are so narrow; a view of odd 16-bit elements is step 6's."""
    take_all(monkeypatch)
    for dtype, offset in ((np.float32, 1), (BFLOAT16, 2), (BFLOAT16, 1)):
        case = random_case(37, 7, dtype)
        moved = replace(case, x=shifted(case.x, offset))
        refused = isinstance(short_rows.plan(problem_of(moved, np.empty_like(case.x)), devices.of((9, 0))), Refusal)
        assert refused == (dtype == BFLOAT16 and offset == 1)
        examine_forward(moved, STEP)


def test_whole_vectors_come_and_go_forward(monkeypatch):
    take_all(monkeypatch)
    case, (launch, found) = random_case(256, 7, BFLOAT16), counter()
    problem = problem_of(case, np.empty_like(case.x))
    plan = short_rows.plan(problem, devices.of((9, 0)))
    plan.launch(launch, None, problem)
    copies = plan.work[0].blocks * -(-plan.layout.tile // (32 * 8))  # 16 bytes per lane
    assert found[0][COPIED.format("requests")] == copies


@pytest.mark.parametrize("sizes", BYTES, ids=str)
@pytest.mark.parametrize("rms", [False, True])
def test_every_column_is_a_lane_s_and_a_warp_s_memory_is_its_own(sizes, rms):
    full = 16 // max(sizes)
    for n2 in range(1, 530):
        natural = min(n2 & -n2, full)
        layout = short_rows.layout_for(n2, natural, sizes, rms)
        if n2 % full:
            longest = 511 if full == 8 and n2 % 4 else 255
            assert (layout is not None) == (n2 <= longest and 2 * n2 != full)
        else:
            assert (layout is not None) == (n2 in short_rows.UNEVEN[max(sizes), rms])
        if layout is None:
            continue
        odd = short_rows.row_chains_of(short_rows.layout_for(n2, 1, sizes, rms))
        assert odd.terms <= short_rows.row_chains_of(layout).terms, "chains of an odd view are no longer"
        vectors, span = layout.thread_map.vectors, layout.thread_map.span
        assert (vectors - 1) * span < n2 <= vectors * span, "no vector too many"
        assert n2 % layout.width == 0
        assert layout.width <= full
        assert layout.thread_map.elements <= ELEMENTS or (layout.lanes == 32 and n2 > 256)
        assert layout.turns * 32 == layout.rows * layout.lanes
        assert all(layout.tile * size % 16 == 0 for size in sizes), "a tile begins with a vector"
        stages = 2 * layout.tile * sizes[0]
        assert layout.results_at * sizes[1] == stages
        assert layout.shared_bytes == stages + (0 if sizes[0] == sizes[1] else layout.tile * sizes[1])
        assert layout.shared_bytes % 16 == 0


@pytest.mark.parametrize("capability", [*CAPABILITIES, (8, 6)], ids=str)
def test_plans_of_tiles_fit_a_gpu_and_the_step_s_chains_are_as_long(capability):
    device = devices.of(capability)
    for n2, dtype, n1 in itertools.product((1, 7, 31, 63, 100, 255), ("bfloat16", "float32"), (9, 2**22, 10**7)):
        plan = STEP.plan(Problem("forward", "layer", n1, n2, dtype), device)
        if n2 == 100 and dtype == "float32":
            assert plan.step == "one_barrier", "whole vectors"
            continue
        assert plan.step == ("one_barrier" if n1 == 9 else "short_rows")
        (work,) = plan.work
        assert work.shared_bytes <= device.shared_bytes
        longest = STEP.row_chains(n2)
        assert plan.rows.terms <= longest.terms
        assert plan.rows.merges <= longest.merges
        if n1 > 9:
            warps, tiles = work.threads // 32, -(-n1 // plan.layout.rows)
            assert work.threads <= 32 * short_rows.WARPS
            assert work.blocks * warps < tiles + warps, "no block without a tile"
            assert work.blocks >= min(tiles, device.multiprocessors), "no multiprocessor without a block"
            assert any("per tile" in line for line in plan.layout.words)


def test_fewer_rows_come_in_smaller_tiles_as_far_as_copies_go():
    """So that multiprocessors have work: tiles of at least eight rows where rows are many, of two of 511 where few."""
    device = devices.of((9, 0))

    def layout_of(n1, n2):
        return STEP.plan(Problem("forward", "layer", n1, n2, "bfloat16"), device).layout

    assert [layout_of(n1, 511).rows for n1 in (10**6, 16_896, 16_000, 8_000, 3_000)] == [8, 8, 4, 2, 2]
    assert [layout_of(n1, 511).together for n1 in (10**6, 16_000, 8_000)] == [8, 4, 2]
    for n2 in (3, 31, 63, 127):
        rows = [layout_of(n1, n2).rows for n1 in (10**7, 2**21 // n2, 2**20 // n2 + 1)]
        assert rows == sorted(rows, reverse=True)
        assert 1056 * rows[1] <= 2**21 // n2 + rows[1], "eight tiles per multiprocessor"


def test_other_rows_are_no_tiles_forward():
    lengths = {1: "short_rows", 36: "short_rows", 255: "short_rows", 4: "one_barrier", 48: "one_barrier"}
    lengths |= {257: "short_rows", 260: "one_barrier", 511: "short_rows", 513: "one_barrier"}
    assert {n2: step_for(10**6, n2) for n2 in lengths} == lengths
    assert (step_for(10**6, 7, alignment=4), step_for(10**6, 7, alignment=2)) == ("short_rows", "one_barrier")
    assert step_for(10**6, 7, "float64") == "column_blocks"
    for extra in ({"residual": True}, {"gate": "after", "norm": "rms"}, {"samples": 9}):
        problem = Problem("forward", **{"norm": "layer", "n1": 9 * 10**5, "n2": 31, **extra}).described()
        assert isinstance(short_rows.plan(problem, devices.of((9, 0))), Refusal)


KERNELS = [(1, BFLOAT16), (31, np.float16), (63, np.float32), (255, BFLOAT16), (511, np.float16)]


@pytest.mark.parametrize(("n2", "dtype"), KERNELS, ids=str)
def test_kernels_of_tiles_spill_nothing_and_compute_in_float32(n2, dtype):
    pytest.importorskip("numba_cuda", reason="kernels are assembled by numba-cuda, which has no wheels here")
    (one,) = launches(STEP, 10**6, n2, Form(dtype, dtype))
    assert one.name == "forward_short_rows"
    taken = resources_in_float32(one.work.kernel, one.types)
    assert (taken.local_bytes, taken.spill_stores) == (0, 0)
    assert taken.registers * 32 * short_rows.WARPS * short_rows.RESIDENT <= 65536
