"""Backward of rows that begin in the middle of a vector: every alignment, both ends of a row and of the matrix."""

import itertools
from dataclasses import replace

import devices
import ml_dtypes
import numpy as np
import pytest
from counting import COPIED, counter
from draws import Case
from examine import backward, examine_backward
from kernels.test_invariance import bits, few_stay, random_case, results, sanitized, shifted, watched

from normlab.engine import launch, using
from normlab.host.checks import step_of
from normlab.kernels import BackwardProblem, Device, Problem, halves
from normlab.kernels.backward import final_sums, layouts, step_3_pipelined
from normlab.kernels.backward.pipelined.layout import PipelineLayout
from normlab.kernels.backward.tables import Candidate
from normlab.kernels.plan import Chosen
from normlab.stages.vector import ThreadMap

BFLOAT16 = ml_dtypes.bfloat16
STEP = step_of("backward", "pipelined")
H100 = Device.named("h100")
TYPES = [(BFLOAT16, BFLOAT16), (np.float16, np.float16), (np.float32, np.float32), (BFLOAT16, np.float32)]
TYPES += [(np.float32, np.float16)]
SHAPES = [(1, 333), (3, 2047), (9, 261), (17, 262), (26, 257)]
paths = pytest.mark.parametrize("memory_efficient", [False, True, "exact"], ids=["saved", "recompute", "exact"])


class Memory:
    """Scratch without contents."""

    empty = staticmethod(np.empty)


def plan_of(n2: int, dtype: str, **how):
    return STEP.plan(Problem("backward", how.pop("norm", "layer"), 3000, n2, dtype, **how), H100)


@paths
@pytest.mark.parametrize(("t", "v"), TYPES)
@pytest.mark.parametrize(("n1", "n2"), SHAPES)
def test_odd_rows_are_right(n1, n2, t, v, memory_efficient, monkeypatch):
    """Fewer rows than alignments, as many, and one more; the last row ends with part of a vector."""
    if n1 > 9:
        devices.many_rows(monkeypatch)
    examine_backward(random_case(n1, n2, t, rms=n1 % 2 == 1, parameters=v), None, STEP, memory_efficient)


@pytest.mark.parametrize("memory_efficient", [False, True])
@pytest.mark.parametrize("parameters", [(True, False), (False, True), (False, False)])
def test_odd_rows_without_parameters_are_right(parameters, memory_efficient):
    case = random_case(9, 333, BFLOAT16)
    given = [one if there else None for one, there in zip((case.weight, case.bias), parameters, strict=True)]
    examine_backward(replace(case, weight=given[0], bias=given[1]), None, STEP, memory_efficient)


@pytest.mark.parametrize("memory_efficient", [False, True])
@pytest.mark.parametrize(("n2", "clusters"), [(259, 1), (333, 1), (259, 5), (333, 3), (333, 16)])
def test_few_clusters_take_all_rows_of_all_alignments(n2, clusters, memory_efficient, monkeypatch):
    """Turn after turn, with a prefetch and without; grad_input has the bits that it has by many clusters.

    Of 3 clusters two begin within an alignment's rows; of 5, one ends with an alignment; 16 are two for each.
    """
    case = random_case(60, n2, BFLOAT16)
    row = Candidate(columns_up_to=512, rows=2, stages=3, why="a test", vectors=1, prefetch=int(n2 == 333))
    monkeypatch.setattr(layouts, "first_for", lambda *how: (row,))
    with using("simulator"), monkeypatch.context() as patch:
        patch.setattr(final_sums, "sums_of", lambda *how: ())
        want = results(case, STEP, memory_efficient)[0]
    few_stay(monkeypatch, clusters)
    got = []

    def noted(*how):
        got.extend(backward(*how))
        return got

    with using("simulator"):  # `few_stay` hands out host memory
        examine_backward(case, None, STEP, memory_efficient, noted)
    assert bits(got[0]) == want


def test_lines_of_sums_are_written_to_their_ends(monkeypatch):
    """Also behind the last column, because the second kernel reads whole vectors."""
    devices.many_rows(monkeypatch)
    lines = []

    class Empty:
        @staticmethod
        def empty(shape, dtype):
            lines.append(np.full(shape, np.nan, dtype))
            return lines[-1]

    case, mean = random_case(11, 333, BFLOAT16), np.zeros(11, np.float32)
    gradients = np.empty_like(case.x), np.empty_like(case.weight), np.empty_like(case.bias)
    with using("simulator"):
        STEP.run(launch, Empty, BackwardProblem(
            case.grad_output, case.x, mean, mean + 1, case.weight, case.bias, np.float32(1), False, False, *gradients
        ))  # fmt: skip
    assert [line.shape[1] for line in lines] == [336, 336]
    assert np.isfinite(lines).all()


@pytest.mark.parametrize("n1", [1, 3, 8, 20])
def test_a_row_s_grad_input_does_not_depend_on_the_number_of_rows(n1, monkeypatch):
    monkeypatch.setattr(final_sums, "sums_of", lambda *how: ())
    case = random_case(40, 333, BFLOAT16)
    few = replace(case, x=case.x[:n1], grad_output=case.grad_output[:n1])
    size = n1 * 333 * 2
    for memory_efficient in (False, True):
        assert results(few, STEP, memory_efficient)[0] == results(case, STEP, memory_efficient)[0][:size]


@pytest.mark.parametrize("memory_efficient", [False, True])
@pytest.mark.parametrize("prefetch", [0, 1])
def test_odd_rows_of_a_cluster_are_right_and_nothing_is_found(prefetch, memory_efficient, monkeypatch):
    """Only the first block has a row's first vector, and only the last one its last; none of it is read twice."""
    layout = PipelineLayout(ThreadMap(32, 1, 4, False), 2, 2, 2 + prefetch, prefetch, 4, 4, alignments=4)
    monkeypatch.setattr(step_3_pipelined, "layout_for", lambda *how: Chosen(layout, "a test"))
    few_stay(monkeypatch)
    case = random_case(11, 249, np.float32)
    with using("simulator"):
        examine_backward(case, None, STEP, memory_efficient, watched)


@pytest.mark.parametrize("memory_efficient", [False, True])
def test_nothing_is_found_in_odd_rows(memory_efficient, monkeypatch):
    """Not even beside the matrix, although its last vector reaches past its end."""
    devices.many_rows(monkeypatch)
    sanitized(random_case(11, 333, BFLOAT16), STEP, memory_efficient)


@pytest.mark.parametrize("memory_efficient", [False, True])
def test_the_neighbours_of_a_row_do_not_reach_its_sums(memory_efficient):
    """Whatever they are: rows of NaN and of infinity leave no trace in the rows between them."""
    case = random_case(9, 333, BFLOAT16)
    want = np.frombuffer(results(case, STEP, memory_efficient)[0], BFLOAT16).reshape(9, 333)
    x, dy = case.x.copy(), case.grad_output.copy()
    dy[::2] = [np.nan]
    dy[4] = np.inf
    spoilt = Case(x, case.weight, case.bias, dy, case.eps, case.rms)
    got = np.frombuffer(results(spoilt, STEP, memory_efficient)[0], BFLOAT16).reshape(9, 333)
    assert got[1::2].tobytes() == want[1::2].tobytes()
    assert not np.isfinite(got[::2]).any()


def test_the_exact_mode_has_the_means_of_every_row():
    case = random_case(9, 333, BFLOAT16)
    gradients = np.empty_like(case.x), np.empty_like(case.weight), np.empty_like(case.bias)
    means = []
    for correction in (0, 333):
        row_sums = np.full((3, 9), np.nan, np.float32)
        row_sums[0] = correction
        with using("simulator"):
            STEP.run(launch, Memory, BackwardProblem(
                case.grad_output, case.x, None, np.ones(9, np.float32), case.weight, case.bias, np.float32(0.01),
                False, True, *gradients, row_sums,
            ))  # fmt: skip
        means.append(row_sums[1:])
    difference = np.repeat([[0.0], [1.0]], 9, 1)  # of mean(g), and of mean(g x̂)
    np.testing.assert_allclose(means[1] - means[0], difference, atol=1e-5)


def test_no_element_beside_grad_input_is_written():
    case = random_case(5, 333, BFLOAT16)
    memory = np.full(5 * 333 + 64, 7, BFLOAT16)
    start = 16 + (-memory.ctypes.data % 16) // 2
    grad_input = memory[start : start + 5 * 333].reshape(5, 333)
    gradients = np.empty(333, BFLOAT16), np.empty(333, BFLOAT16)
    mean, invvar = np.zeros(5, np.float32), np.ones(5, np.float32)
    with using("simulator"):
        STEP.run(launch, Memory, BackwardProblem(
            case.grad_output, case.x, mean, invvar, case.weight, case.bias, np.float32(0.01), False, False,
            grad_input, *gradients,
        ))  # fmt: skip
    assert (memory[:start] == 7).all()
    assert (memory[start + grad_input.size :] == 7).all()


@pytest.mark.parametrize("memory_efficient", [False, True])
def test_views_that_begin_in_the_middle_of_a_vector_are_right(memory_efficient):
    """They keep to vectors that fit all rows."""
    case = random_case(5, 333, np.float32)
    examine_backward(replace(case, grad_output=shifted(case.grad_output, 1)), None, STEP, memory_efficient)


def test_whole_vectors_are_copied():
    case, (launch, found) = random_case(8, 1001, BFLOAT16), counter()
    gradients = np.zeros_like(case.x), np.zeros_like(case.weight), np.zeros_like(case.bias)
    STEP.run(launch, Memory, BackwardProblem(
        case.grad_output, case.x, np.zeros(8, np.float32), np.ones(8, np.float32), case.weight, case.bias,
        np.float32(1), False, False, *gradients,
    ))  # fmt: skip
    copied = found[0][COPIED.format("requests")]
    assert copied <= 2 * 8 * -(-1008 // 256), "32 lanes of 16 bytes a request, of both arrays"


@pytest.mark.parametrize(
    ("n2", "dtype", "alignments"),
    [(257, "bfloat16", 8), (1002, "float16", 4), (50_257, "bfloat16", 8), (333, "float32", 4), (131_071, "float32", 4)],
)
@pytest.mark.parametrize("saved", ["input", "output"])
def test_the_plan_of_odd_rows_has_whole_vectors_and_as_many_clusters_for_each_alignment(n2, dtype, alignments, saved):
    for norm in ("layer", "rms"):
        plan = plan_of(n2, dtype, norm=norm, saved=saved)
        layout, work = plan.layout, plan.work[0]
        assert layout.alignments == alignments
        assert layout.thread_map.width == (4 if dtype == "float32" else 8)
        assert layout.blocks * layout.thread_map.columns >= n2 + layout.thread_map.width - 8 // alignments
        assert work.grid % (layout.blocks * alignments) == 0
        assert any("offsets within a vector" in line for line in layout.words)
        assert "middle of a vector" in plan.why


def test_rows_that_vectors_of_half_the_width_fit_are_aligned_where_that_is_faster():
    for n2, dtype in ((2308, "bfloat16"), (1002, "float32"), (63, "bfloat16"), (1000, "bfloat16")):
        plan = plan_of(n2, dtype)
        assert getattr(plan.layout, "alignments", 1) == 1
    for n2, dtype in ((708, "bfloat16"), (202, "float32"), (65_540, "bfloat16")):
        assert plan_of(n2, dtype).layout.alignments == 2
    assert plan_of(333, "float32", alignment=8).layout.alignments == 1, "a matrix that begins within a vector"


@pytest.mark.parametrize("ranges", [*halves.FORWARD.values(), *halves.BACKWARD.values()])
def test_ranges_of_rows_in_half_vectors_ascend_without_overlap(ranges):
    ends = list(itertools.chain(*ranges))
    assert ends == sorted(set(ends))
    for first, last in ranges:
        assert halves.whole_vectors_pay(first, ranges)
        assert halves.whole_vectors_pay(last, ranges)
        assert not halves.whole_vectors_pay(first - 1, ranges)
