"""Forward of short rows: tiles come and go as whole vectors, whatever a row's length; every dtype, both norms."""

import itertools
from dataclasses import replace

import devices
import ml_dtypes
import numpy as np
import pytest
from draws import Case
from examine import examine_forward, forward
from kernels.test_invariance import assert_the_same_whenever_and_however_it_runs, random_case, results, sanitized
from kernels.test_plans import BYTES, CAPABILITIES, Form, launches

from normlab.engine import compile_ptx, launch, resources, using
from normlab.host.checks import step_of
from normlab.kernels import ForwardProblem, Problem
from normlab.kernels.forward import short_rows
from normlab.kernels.plan import Refusal
from normlab.kernels.tiles import ELEMENTS
from normlab.sim import trace

BFLOAT16 = ml_dtypes.bfloat16
STEP = step_of("forward", "clusters")
PAIRS = [(BFLOAT16, BFLOAT16), (np.float16, np.float16), (np.float32, np.float32), (BFLOAT16, np.float32)]
PAIRS += [(np.float32, np.float16)]
# One row, a tile and a part of one, several blocks; of one lane and of several; odd and even; the longest.
SHAPES = [(1, 1), (700, 1), (70, 3), (137, 7), (33, 12), (50, 31), (20, 36), (9, 97), (19, 127)]


def is_taken(n2: int, dtype, n1: int = 9) -> bool:
    return STEP.plan(Problem("forward", "layer", n1, n2, np.dtype(dtype).name), devices.of((9, 0))).step == "short_rows"


@pytest.mark.parametrize(("n1", "n2"), SHAPES)
def test_tiles_are_right_forward(n1, n2):
    assert is_taken(n2, BFLOAT16)
    for number, (t, v) in enumerate(PAIRS):
        examine_forward(random_case(n1, n2, t, rms=(n1 + number) % 2 == 1, parameters=v), STEP)


@pytest.mark.parametrize("parameters", [(True, False), (False, True), (False, False)])
def test_tiles_without_parameters_are_right_forward(parameters):
    case = random_case(37, 5, BFLOAT16)
    given = [one if there else None for one, there in zip((case.weight, case.bias), parameters, strict=True)]
    examine_forward(replace(case, weight=given[0], bias=given[1]), STEP)


def small_tiles(monkeypatch):
    """Let one block of two warps take the smallest tiles, so that few rows are many tiles of a warp."""
    for name, value in (("STAGE_BYTES", 0), ("WARPS", 2), ("RESIDENT", 1), ("WAVES", 1)):
        monkeypatch.setattr(short_rows, name, value)
    devices.plan_for(monkeypatch, multiprocessors=1)


TURNS = [(200, 3, BFLOAT16), (150, 9, np.float32), (75, 20, np.float16), (75, 63, BFLOAT16), (45, 127, np.float32)]
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
    for n1, n2, dtype in TURNS:
        case = random_case(n1, n2, dtype)
        want = forward(case, STEP)
        for few in (1, 7, n1 // 2):
            got = forward(replace(case, x=case.x[:few]), STEP)
            assert [one.tobytes() for one in got] == [one[:few].tobytes() for one in want]
        with monkeypatch.context() as patch, using("simulator"):
            want = results(case, STEP)
            small_tiles(patch)
            assert results(case, STEP) == want


def test_the_bits_of_tiles_depend_on_no_schedule(monkeypatch):
    small_tiles(monkeypatch)
    assert_the_same_whenever_and_however_it_runs(random_case(*TURNS[0]), STEP)


def test_the_neighbours_of_a_short_row_do_not_reach_it_forward():
    """Whatever they are: rows of NaN and of infinity leave no trace in the rows between them."""
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
def test_no_element_beside_the_output_is_written(n2):
    case = random_case(37, n2, BFLOAT16)
    memory = np.full(37 * n2 + 64, 7, BFLOAT16)
    start = 16 + (-memory.ctypes.data % 16) // 2
    output = memory[start : start + 37 * n2].reshape(37, n2)
    with using("simulator"):
        short_rows.plan(problem_of(case, output), devices.of((9, 0))).launch(launch, None, problem_of(case, output))
    assert (memory[:start] == 7).all()
    assert (memory[start + output.size :] == 7).all()
    assert output.tobytes() == forward(case, STEP)[0].tobytes()


def test_views_that_begin_in_the_middle_of_a_vector_are_right_forward():
    """As far as asynchronous copies are so narrow; a view of odd 16-bit elements is step 6's."""
    for dtype, offset in ((np.float32, 1), (BFLOAT16, 2), (BFLOAT16, 1)):
        case = random_case(37, 7, dtype)
        memory = np.zeros(37 * 7 + 16, dtype)
        start = (-memory.ctypes.data % 16) // memory.itemsize + offset
        memory[start : start + 37 * 7] = case.x.ravel()
        moved = replace(case, x=memory[start : start + 37 * 7].reshape(37, 7))
        refused = isinstance(short_rows.plan(problem_of(moved, np.empty_like(case.x)), devices.of((9, 0))), Refusal)
        assert refused == (dtype == BFLOAT16 and offset == 1)
        examine_forward(moved, STEP)


def test_whole_vectors_come_and_go_forward():
    case, counted = random_case(256, 7, BFLOAT16), []
    problem = problem_of(case, np.empty_like(case.x))

    def traced(kernel, grid, block, *args, shared_bytes=0):
        counted.append(trace(kernel)[grid, block, 0, shared_bytes](*args).metrics)

    plan = short_rows.plan(problem, devices.of((9, 0)))
    plan.launch(traced, None, problem)
    copies = plan.work[0].blocks * -(-plan.layout.tile // (32 * 8))  # 16 bytes per lane
    assert counted[0]["sm__sass_l1tex_t_requests_pipe_lsu_mem_global_op_ldgsts.sum"] == copies


@pytest.mark.parametrize("sizes", BYTES, ids=str)
def test_every_column_is_a_lane_s_and_a_warp_s_memory_is_its_own(sizes):
    full = 16 // max(sizes)
    for n2 in range(1, 300):
        chosen = short_rows.layout_for(n2, sizes)
        if chosen is None:
            continue
        layout = chosen.layout
        assert len(chosen.why) > 20
        span = layout.lanes * layout.width
        assert (layout.vectors - 1) * span < n2 <= layout.vectors * span, "no vector too many"
        assert n2 % layout.width == 0
        assert layout.width <= full
        assert layout.elements <= ELEMENTS
        assert layout.turns * 32 == layout.rows * layout.lanes
        assert all(layout.tile * size % 16 == 0 for size in sizes), "a tile begins with a vector"
        assert 4 * layout.results_at == 2 * layout.tile * sizes[0]
        assert layout.shared_bytes == 4 * (layout.results_at + layout.tile)
        assert layout.shared_bytes % 16 == 0


@pytest.mark.parametrize("capability", [*CAPABILITIES, (8, 6)], ids=str)
def test_plans_of_tiles_fit_a_gpu_and_the_step_s_chains_are_as_long(capability):
    device = devices.of(capability)
    for n2, dtype, n1 in itertools.product((1, 2, 7, 31, 63, 100, 127), ("bfloat16", "float32"), (1, 1000, 10**6)):
        plan = STEP.plan(Problem("forward", "layer", n1, n2, dtype), device)
        if plan.step != "short_rows":
            continue
        (work,) = plan.work
        assert work.shared_bytes <= device.shared_bytes
        assert work.threads <= 256
        tiles = -(-n1 // plan.layout.rows)
        assert work.blocks * work.threads // 32 < tiles + work.threads // 32, "no block without a tile"
        assert work.blocks >= min(tiles, device.multiprocessors), "no multiprocessor without a block"
        longest = STEP.row_chains(n2)
        assert plan.rows.terms <= longest.terms
        assert plan.rows.merges <= longest.merges
        assert any("per tile" in line for line in plan.layout.words)


KERNELS = [(1, BFLOAT16), (31, np.float16), (63, np.float32), (127, BFLOAT16)]


@pytest.mark.parametrize(("n2", "dtype"), KERNELS, ids=str)
def test_kernels_of_tiles_spill_nothing_and_compute_in_float32(n2, dtype):
    pytest.importorskip("numba_cuda", reason="kernels are assembled by numba-cuda, which has no wheels here")
    (one,) = launches(STEP, 10**6, n2, Form(dtype, dtype))
    assert one.name == "forward_short_rows"
    taken = resources(one.work.kernel, one.types, (9, 0))
    assert (taken.local_bytes, taken.spill_stores) == (0, 0)
    assert taken.registers * 256 * short_rows.RESIDENT <= 65536
    assert ".f64" not in compile_ptx(one.work.kernel, one.types, (9, 0))
