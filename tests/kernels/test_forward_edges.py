"""Forward of long rows that begin in the middle of a vector: every place, both ends of a row and of the matrix.

The rows are short here, with layouts as those of the rows that clusters are for.
"""

from dataclasses import replace
from functools import cache

import devices
import ml_dtypes
import numpy as np
import pytest
from examine import arithmetic, examine_forward, forward, forward_bound, forward_truth
from kernels.test_invariance import bits, built_plans, few_stay, in_smaller_batches, random_case, shifted, watched

from normlab import oracle
from normlab.engine import launch, using
from normlab.host.checks import step_of
from normlab.kernels import Device, ForwardProblem, Problem
from normlab.kernels.forward import layouts
from normlab.kernels.plan import Chosen
from normlab.learn.explain import explain
from normlab.stages.vector import ThreadMap

BFLOAT16 = ml_dtypes.bfloat16
STEP = step_of("forward", "clusters")
H100 = Device.named("h100")
TYPES = [(BFLOAT16, BFLOAT16), (np.float32, np.float32), (BFLOAT16, np.float32), (np.float32, np.float16)]
SHAPES = {8: [(1, 1601), (3, 1021), (20, 1030), (9, 1338)], 4: [(1, 777), (3, 509), (9, 517)]}  # by a vector's elements
CASES = [(*shape, t, v) for t, v in TYPES for shape in SHAPES[16 // max(np.dtype(t).itemsize, np.dtype(v).itemsize)]]


def lay_out(monkeypatch, width: int, itemsize: int, clusters: int = 3, **limits: int) -> None:
    """Let odd rows have two blocks of 64 threads, and so many clusters take all of them."""
    monkeypatch.setattr(layouts, "EDGES_FROM", dict.fromkeys(layouts.EDGES_FROM, 1))
    for name, value in limits.items():
        monkeypatch.setattr(layouts, name, value)
    layout = layouts.ClusterLayout(ThreadMap(64, 2, width, False), 2, itemsize)
    monkeypatch.setattr(layouts, "slices_for", lambda *how: Chosen(layout, "a test"))
    few_stay(monkeypatch, clusters)


@pytest.mark.parametrize("rms", [False, True], ids=["layer", "rms"])
@pytest.mark.parametrize(("n1", "n2", "t", "v"), CASES)
def test_long_odd_rows_are_right(n1, n2, t, v, rms, monkeypatch):
    """Also a row whose last vector is another block's in some places only."""
    lay_out(monkeypatch, 16 // max(np.dtype(t).itemsize, np.dtype(v).itemsize), np.dtype(t).itemsize)
    built = built_plans(monkeypatch)
    with using("simulator"):  # `few_stay` hands out host memory
        examine_forward(random_case(n1, n2, t, rms, parameters=v), STEP)
    assert all(plan.anywhere for plan in built)


WAYS = {  # limits of `layouts`, multiprocessors; do registers hold a row, blocks per slice, clusters that read a row
    "kept": ({}, 1, (True, 1, 1)),
    "alike": ({"ALIKE_FROM": 0}, 1, (True, 1, 1)),
    "read again": ({"WORDS_OF_TWO_BLOCKS": 1}, 1, (False, 1, 1)),
    "few rows": ({"SMALLEST_BLOCK": 32}, 60, (True, 2, 1)),
    "few rows, several readers": ({"WORDS_OF_TWO_BLOCKS": 1}, 60, (False, 1, 2)),
}


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_found_in_long_odd_rows(way, monkeypatch):
    """Not even beside the matrix, although its last vector reaches past its end; with both parameters, one and none."""
    limits, processors, how = WAYS[way]
    lay_out(monkeypatch, 8, 2, **limits)
    devices.plan_for(monkeypatch, multiprocessors=processors)
    case, built = random_case(13, 1021, BFLOAT16), built_plans(monkeypatch)
    ones = case, replace(case, weight=None), replace(case, bias=None), replace(case, weight=None, bias=None)
    with using("simulator"):
        for one in ones:
            examine_forward(one, STEP, watched)
    assert {(plan.kept, plan.spread, plan.readers) for plan in built if plan.parameters} == {how}


def test_a_row_that_registers_do_not_keep_has_another_layout(monkeypatch):
    """Kernels are remembered by layout: with an equal one, the second kind of row would run the first one's kernel."""
    slices = layouts.ClusterLayout(ThreadMap(64, 2, 8, False), 2, 2)
    kept = layouts.spread_out(slices, 1000, 2, H100)
    monkeypatch.setattr(layouts, "WORDS_OF_TWO_BLOCKS", 1)
    read_again = layouts.spread_out(slices, 1000, 2, H100)
    assert (kept.kept, read_again.kept) == (True, False)
    assert kept != read_again


@cache
def bits_by_a_cluster_each():
    """A case, and the bits of its results where each row has a cluster of its own."""
    case = random_case(13, 1021, BFLOAT16)
    with pytest.MonkeyPatch.context() as patch, using("simulator"):
        lay_out(patch, 8, 2, 13)
        return case, [bits(array) for array in forward(case, STEP)]


def hold_bits(monkeypatch, clusters: int, **limits: int) -> set[bool]:
    """Hold rows to the bits that they have by a cluster each; return whether clusters took rows of one place only."""
    case, want = bits_by_a_cluster_each()
    lay_out(monkeypatch, 8, 2, clusters, **limits)
    built = built_plans(monkeypatch)
    with using("simulator"):
        assert [bits(array) for array in in_smaller_batches(case, (1, 2, 8, 9))] == want
    return {plan.alike for plan in built}


@pytest.mark.parametrize("clusters", [1, 4, 7, 8])
def test_a_row_has_the_same_bits_in_every_batch_and_by_any_number_of_clusters(clusters, monkeypatch):
    assert hold_bits(monkeypatch, clusters) == {False}


@pytest.mark.parametrize("clusters", [1, 8, 9])
def test_a_row_has_the_same_bits_by_clusters_that_take_rows_of_one_place(clusters, monkeypatch):
    assert hold_bits(monkeypatch, clusters, ALIKE_FROM=0) == {True}


def test_the_neighbours_of_a_row_do_not_reach_it(monkeypatch):
    """Whatever they are: rows of NaN and of infinity leave no trace in the rows between them."""
    lay_out(monkeypatch, 8, 2)
    case = random_case(9, 1021, BFLOAT16)
    x = case.x.copy()
    x[::2] = [np.nan]
    x[4, 0] = np.inf
    with using("simulator"):
        want, got = forward(case, STEP), forward(replace(case, x=x), STEP)
    for before, after in zip(want, got, strict=True):
        assert after[1::2].tobytes() == before[1::2].tobytes()
        assert not np.isfinite(after[::4].astype(np.float32)).any()


@pytest.mark.parametrize("offset", range(8))
@pytest.mark.parametrize("n2", [1021, 1024])
def test_views_that_begin_within_a_vector_are_right_and_nothing_beside_the_output_is_written(n2, offset, monkeypatch):
    """Of an odd number of columns, and of one with which all rows begin alike; the weight begins elsewhere."""
    lay_out(monkeypatch, 8, 2)
    built, case = built_plans(monkeypatch), random_case(9, n2, BFLOAT16)
    memory = shifted(np.full(case.x.size + 32, 7, BFLOAT16), offset)
    output = memory[16 : 16 + case.x.size].reshape(9, n2)
    problem = ForwardProblem(
        shifted(case.x, offset), shifted(case.weight, 3), case.bias, np.float32(case.eps), output,
        *np.full((2, 9), np.nan, np.float32),
    )  # fmt: skip
    with using("simulator"):
        STEP.run(launch, None, problem)
    assert [plan.anywhere for plan in built] == [True]
    how = arithmetic(case, STEP.plan(problem, H100).rows, statistics=STEP.statistics)
    truth, bound = forward_truth(case), forward_bound(case, how)
    for name in ("output", "mean", "invvar"):
        oracle.assert_within(getattr(problem, name), getattr(truth, name), getattr(bound, name), name)
    assert (memory[:16] == 7).all()
    assert (memory[16 + output.size :] == 7).all()


def test_views_that_lie_otherwise_than_the_output_are_right(monkeypatch):
    """They keep to vectors that fit both."""
    lay_out(monkeypatch, 8, 2)
    case = random_case(3, 1021, BFLOAT16)
    with using("simulator"):
        examine_forward(replace(case, x=shifted(case.x, 1)), STEP)


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize(
    ("n2", "dtype"),
    [(20_001, "bfloat16"), (50_257, "float16"), (91_706, "bfloat16"), (33_333, "float32"), (200_001, "float32")],
)
def test_the_plan_of_long_odd_rows_has_whole_vectors(n2, dtype, norm):
    for n1 in (1, 3000):
        said = explain("forward", norm=norm, n1=n1, n2=n2, dtype=dtype, device="h100")
        layout = said.plan.layout
        assert (said.plan.step, layout.anywhere) == ("clusters", True)
        assert layout.thread_map.width == (4 if dtype == "float32" else 8)
        assert layout.blocks * layout.thread_map.columns >= n2 + layout.thread_map.width - 1 - (n2 % 2 == 0)
        assert any("middle of a vector" in line for line in layout.words)


def test_some_rows_that_vectors_of_half_the_width_fit_and_shorter_ones_are_laid_out_otherwise():
    for n2, dtype in (
        (50_252, "bfloat16"),
        (9_006, "float32"),
        (3_071, "bfloat16"),
        (8_196, "bfloat16"),
        (50_256, "bfloat16"),
    ):
        plan = STEP.plan(Problem("forward", "layer", 3000, n2, dtype), H100)
        assert not getattr(plan.layout, "anywhere", False)
    for n2, dtype in ((65_540, "bfloat16"), (50_258, "float32")):
        assert STEP.plan(Problem("forward", "layer", 3000, n2, dtype), H100).layout.anywhere
    half = Problem("forward", "layer", 3000, 50_257, "float64")
    assert STEP.plan(half, H100).step == "column_blocks"


@pytest.mark.parametrize("n1", [1, 4, 16, 3000])
@pytest.mark.parametrize("n2", [16_383, 20_001, 33_001, 65_537, 131_073])
def test_a_slice_has_no_warp_too_many_and_its_blocks_have_whole_warps(n1, n2):
    """However few rows there are: then smaller blocks share the slice, half the warps each."""
    for dtype in ("bfloat16", "float32"):
        layout = STEP.plan(Problem("forward", "rms", n1, n2, dtype), H100).layout
        vectors = -(-(n2 + layout.thread_map.width - 1) // layout.thread_map.width)  # of memory, at the latest place
        assert layout.blocks * (layout.thread_map.threads - 32) * layout.thread_map.vectors < vectors
        assert layout.warps * 32 == layout.threads


def test_rows_that_registers_hold_as_fast_are_not_in_clusters():
    """Up to a length that the dtype and the norm decide."""
    for norm, dtype, n2 in (("layer", "bfloat16", 6905), ("rms", "float16", 12_287), ("layer", "float32", 10_239)):
        assert STEP.plan(Problem("forward", norm, 3000, n2, dtype), H100).step == "one_barrier"
        assert STEP.plan(Problem("forward", norm, 3000, n2 + 2, dtype), H100).step == "clusters"


def test_a_layer_norm_that_cuts_its_parameters_out_has_few_vectors_per_thread():
    """In 16 bits, where rows begin at eight places. With up to six, three blocks share a multiprocessor."""
    layouts = {}
    for n2 in (57_001, 65_537, 90_001, 29_001, 60_004):
        for norm, dtype in (("layer", "bfloat16"), ("rms", "bfloat16"), ("layer", "float32")):
            layouts[norm, dtype, n2] = STEP.plan(Problem("forward", norm, 3000, n2, dtype), H100).layout
    vectors = {key: layout.thread_map.vectors for key, layout in layouts.items()}
    assert vectors["layer", "bfloat16", 57_001] == 5
    assert vectors["rms", "bfloat16", 57_001] == vectors["layer", "float32", 57_001] == 7
    assert layouts["layer", "bfloat16", 29_001].alike
    assert vectors["layer", "bfloat16", 29_001] == vectors["layer", "bfloat16", 60_004] == 8
    assert [layouts["layer", "bfloat16", n2].resident_slices for n2 in (57_001, 65_537, 90_001)] == [2, 3, 3]
