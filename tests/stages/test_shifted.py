"""Rows that begin in the middle of a vector: what a thread loads of them, what is stored of them and beside them."""

from dataclasses import replace

import devices
import ml_dtypes
import numpy as np
import pytest
from counting import LOADED, STORED, counter
from examine import examine_forward, forward
from kernels.test_invariance import random_case, shifted
from watching import Memory, launcher

from normlab.engine import cuda, flat, float32, launch, shift_of, using
from normlab.host.checks import step_of
from normlab.kernels import Device, ForwardProblem, Problem
from normlab.kernels.forward import row_counts, shifted_rows
from normlab.stages.shifted import ShiftedMap, outside_filler, shifted_row_loader
from normlab.stages.vector import map_threads, shifts_alike

BFLOAT16 = ml_dtypes.bfloat16
STEP = step_of("forward", "one_barrier")
TYPES = [(BFLOAT16, BFLOAT16), (np.float16, np.float16), (np.float32, np.float32), (BFLOAT16, np.float32)]
TYPES += [(np.float32, np.float16)]


def shifted_map(n2: int, threads: int, dtype) -> ShiftedMap:
    itemsize = np.dtype(dtype).itemsize
    width = 16 // itemsize
    thread_map = map_threads(-(-(n2 + width - 1) // width) * width, width, threads)._replace(whole=False)
    return ShiftedMap(thread_map, n2 // thread_map.span, itemsize, itemsize, True)


@pytest.mark.parametrize("dtype", [BFLOAT16, np.float16, np.float32])
@pytest.mark.parametrize(("n2", "threads"), [(135, 4), (131, 16), (259, 32), (67, 32)])
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_a_thread_has_vectors_of_memory_with_zeros_for_the_neighbours_elements(dtype, n2, threads, offset):
    dealt = shifted_map(n2, threads, dtype)
    load_row, fill_outside, thread_map = shifted_row_loader(dealt), outside_filler(dealt), dealt.thread_map
    elements, width = thread_map.elements, thread_map.width
    x = shifted(np.random.default_rng(0).normal(size=(9, n2)).astype(dtype), offset)

    @cuda.jit
    def kernel(x, out):
        values = cuda.local.array(elements, float32)
        row, first = cuda.blockIdx.x, cuda.threadIdx.x * width
        extent = shift_of(flat(x), row * n2, width), n2
        load_row(values, x, row, extent, first)
        for k in range(elements):
            out[0, row, cuda.threadIdx.x, k] = values[k]
        fill_outside(values, extent, first, 5)
        for k in range(elements):
            out[1, row, cuda.threadIdx.x, k] = values[k]

    out = np.full((2, 9, threads, elements), np.nan, np.float32)
    with using("simulator"):
        launch(kernel, 9, threads, x, out)
    for value, got in zip((0, 5), out, strict=True):
        want = np.full((9, thread_map.columns), value, np.float32)
        for row in range(9):
            before = (x.ctypes.data // x.itemsize + row * n2) % width
            want[row, before : before + n2] = x[row]
        want = want.reshape(9, thread_map.vectors, threads, width).transpose(0, 2, 1, 3).reshape(9, threads, -1)
        np.testing.assert_array_equal(got, want)


SHAPES = [(9, 515), (17, 519), (3, 513), (2, 589), (4, 1001), (1, 2047)]


@pytest.mark.parametrize(("t", "v"), TYPES)
@pytest.mark.parametrize(("n1", "n2"), SHAPES)
def test_rows_of_every_place_are_right(n1, n2, t, v):
    """Of every shift, also the matrix's first and last row; of one block of rows and of several."""
    case = random_case(n1, n2, t, rms=n1 % 2 == 1, parameters=v)
    examine_forward(case, STEP)
    if t is v:  # without parameters the output has the input's dtype
        examine_forward(replace(case, weight=None, bias=None), STEP)


@pytest.mark.parametrize("matrices", range(8))
def test_views_with_any_offset_are_right(matrices):
    case = random_case(3, 589, BFLOAT16)
    for parameters in (0, 3):
        moved = replace(
            case,
            x=shifted(case.x, matrices),
            weight=shifted(case.weight, parameters),
            bias=shifted(case.bias, (parameters + 2) % 8),
        )
        examine_forward(moved, STEP)


@pytest.mark.parametrize("n2", [515, 589])
def test_a_row_s_bits_depend_only_on_where_in_a_vector_it_begins(n2):
    """Rows of an odd number of elements begin at the same place every eighth time."""
    case = random_case(1, n2, BFLOAT16)
    same = replace(case, x=np.repeat(case.x, 17, axis=0))
    with using("simulator"):
        output, mean, invvar = forward(same, STEP)
    for results in (output, mean, invvar):
        assert all(results[row].tobytes() == results[row % 8].tobytes() for row in range(17))


@pytest.mark.parametrize("offset", [0, 1])
def test_no_element_beside_the_output_is_written(offset):
    case = random_case(9, 589, BFLOAT16)
    memory = np.full(9 * 589 + 32, 7, BFLOAT16)
    start = 8 + (-memory.ctypes.data % 16) // 2 + offset
    output = memory[start : start + 9 * 589].reshape(9, 589)
    statistics = np.empty((2, 9), np.float32)
    with using("simulator"):
        STEP.run(launch, None, ForwardProblem(case.x, case.weight, case.bias, np.float32(0.01), output, *statistics))
    assert (memory[:start] == 7).all()
    assert (memory[start + output.size :] == 7).all()
    with using("simulator"):
        np.testing.assert_array_equal(output, forward(replace(case, eps=0.01), STEP)[0])


def watch(case):
    """Run the step's kernel in the sanitizer, which must find nothing."""
    memory, rows = Memory(), len(case.x)
    output, invvar = memory.empty(case.x.shape, case.x.dtype), memory.empty(rows, np.float32)
    mean = None if case.rms else memory.empty(rows, np.float32)
    problem = ForwardProblem(case.x, case.weight, case.bias, np.float32(0.01), output, mean, invvar)
    STEP.run(launcher(memory), memory, problem)
    assert not memory.empties


@pytest.mark.parametrize(("rms", "offset"), [(False, 0), (True, 0), (True, 3)])
def test_nothing_is_found(rms, offset, monkeypatch):
    """Also nothing that is read before the matrix, where its first row begins in the middle of a vector."""
    devices.plan_for(monkeypatch, multiprocessors=1)  # else the rows are few
    case = random_case(9, 589, BFLOAT16, rms)
    watch(replace(case, x=shifted(case.x, offset)))


@pytest.mark.parametrize("n2", [589, 1281])
def test_nothing_is_found_in_few_rows(n2):
    """Parameters are staged while the rows are on their way, of part of a warp and of two warps."""
    watch(random_case(9, n2, BFLOAT16))


def by_turns(monkeypatch):
    """Let eight blocks, one for each place where a row may begin, take all rows, as if they were many."""
    devices.plan_for(monkeypatch, multiprocessors=1)
    monkeypatch.setattr(row_counts, "shifted_grid", lambda layout, n1, device: 8)


@pytest.mark.parametrize("n2", [515, 1281])
def test_rows_by_turns_have_the_same_bits(n2, monkeypatch):
    """Of part of a warp, and of two warps."""
    case = random_case(8 * (16 if n2 == 515 else 2) * 2 + 3, n2, BFLOAT16)
    with using("simulator"):
        want = forward(case, STEP)
        by_turns(monkeypatch)
        got = forward(case, STEP)
    assert all(one.tobytes() == other.tobytes() for one, other in zip(got, want, strict=True))


def test_nothing_is_found_in_rows_by_turns(monkeypatch):
    """A row's sums are read while another warp has written those of the next."""
    by_turns(monkeypatch)
    watch(random_case(36, 1281, BFLOAT16))  # the blocks take 16 rows a turn


def test_the_grid_has_blocks_for_every_place_and_turns_only_for_many_rows():
    device = Device.named("h100")
    layout = shifted_rows.layout_for(333, 2, 2, True, False).layout
    turns = {}
    for n1 in (1, 9, 1000, 10**5, 10**7):
        grid = row_counts.shifted_grid(layout, n1, device)
        assert grid % 8 == 0
        turns[n1] = -(-n1 // (grid * layout.rows))
        assert grid * layout.rows * turns[n1] >= n1
    assert turns[1] == turns[9] == turns[1000] == 1
    assert turns[10**7] == row_counts.SHIFTED_TURNS


def test_a_thread_has_a_fifth_vector_where_four_would_leave_a_fifth_of_the_threads_idle():
    """Of bfloat16, on half a warp or more; and a block has as few rows as fill 128 threads."""
    found = ((897, 4, 32), (1025, 5, 32), (1281, 3, 64), (2305, 5, 64), (2049, 3, 96), (257, 3, 16), (3001, 3, 128))
    for n2, vectors, threads in found:
        layout = shifted_rows.layout_for(n2, 2, 2, True, False).layout
        assert (layout.thread_map.vectors, layout.thread_map.threads) == (vectors, threads), n2
        assert layout.rows == -(-128 // threads)


def test_as_many_threads_stay_on_a_multiprocessor_as_registers_allow():
    """In 16 bits 1,152 threads, if they hold few elements or one parameter, and rows have whole warps."""
    resident = {(333, False): 1024, (1025, False): 896, (1281, False): 1152, (2049, False): 1152, (2561, False): 960}
    resident |= {(333, True): 1152, (1025, True): 1024, (2561, True): 1152}
    for (n2, rms), threads in resident.items():
        layout = shifted_rows.layout_for(n2, 2, 2, True, rms).layout
        assert layout.resident * layout.rows * layout.thread_map.threads == threads, (n2, rms)
    for n2, rms in ((333, False), (767, True)):
        layout = shifted_rows.layout_for(n2, 4, 4, True, rms).layout
        assert layout.resident * layout.rows * layout.thread_map.threads == 1024, (n2, rms)


def test_whole_vectors_are_moved():
    """A third of the requests that one element at a time would take, although rows have two ends each."""
    case = random_case(8, 1001, BFLOAT16, rms=True)
    launch, found = counter()
    output, invvar = np.empty_like(case.x), np.empty(8, np.float32)
    STEP.run(launch, None, ForwardProblem(case.x, None, None, np.float32(1e-5), output, None, invvar))
    (metrics,) = found
    single = 8 * -(-1001 // 32)  # requests of a warp that moves one element a lane
    for moved in (LOADED, STORED):
        assert metrics[moved.format("requests")] < single / 2


def test_x_and_output_lie_alike_or_not():
    memory = np.zeros(64, np.uint8)[-np.zeros(1).ctypes.data % 16 :].view(np.float32)
    assert shifts_alike(4, memory, memory[4:])
    assert not shifts_alike(4, memory, memory[1:])


@pytest.mark.parametrize(("dtype", "n2"), [("bfloat16", 515), ("bfloat16", 16383), ("float32", 333), ("float16", 1002)])
def test_the_plan_of_odd_rows_has_whole_vectors(dtype, n2):
    plan = STEP.plan(Problem("forward", "layer", 100, n2, dtype), Device.named("h100"))
    thread_map = plan.layout.thread_map
    assert thread_map.width == (4 if dtype == "float32" else 8)
    assert thread_map.columns >= n2 + thread_map.width - 1, "a row may begin with the last element of a vector"
    assert any("middle of a vector" in line for line in plan.layout.words)


def test_rows_that_vectors_of_half_the_width_fit_are_not_shifted():
    for dtype, n2 in (("bfloat16", 1004), ("float32", 1002), ("bfloat16", 33)):
        plan = STEP.plan(Problem("forward", "layer", 100, n2, dtype), Device.named("h100"))
        assert plan.layout.shifted is None
    assert shifted_rows.layout_for(40_001, 2, 2, True, False) is None
