"""Rows that are cut into pieces: right in every form, with the same bits in every batch, and nothing is found."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from examine import examine_backward, examine_forward
from kernels.test_invariance import (
    assert_the_same_whenever_and_however_it_runs,
    random_case,
    results,
    sanitized,
)
from kernels.test_plans import Form, launches
from watching import Memory, launcher

from normlab.engine import resources, use_gpu, using
from normlab.host.checks import step_of
from normlab.kernels import ForwardProblem, split
from normlab.kernels.backward import step_2_fused, step_3_pipelined
from normlab.kernels.backward.short_rows import plan as short_rows
from normlab.kernels.forward import layouts, shifted_rows

BFLOAT16 = ml_dtypes.bfloat16
CLUSTERS, PIPELINED = step_of("forward", "clusters"), step_of("backward", "pipelined")
FORWARD_KERNELS = ["forward_split_pieces", "forward_split_statistics", "forward_split_output"]
KERNELS = ["backward_split_sums", "backward_split_means", "backward_split_gradients"]
both_paths = pytest.mark.parametrize("memory_efficient", [False, True])


def split_short_rows(monkeypatch):
    """Let rows be cut into pieces that are not too long for anything else."""
    monkeypatch.setattr(short_rows, "layout_for", lambda *how: None)
    monkeypatch.setattr(step_3_pipelined, "layout_for", lambda *how: None)
    monkeypatch.setattr(step_2_fused, "thread_map_of", lambda problem: None)
    monkeypatch.setattr(layouts, "rows_for", lambda *how: None)
    monkeypatch.setattr(shifted_rows, "layout_for", lambda *how: None)
    monkeypatch.setattr(layouts, "slices_for", lambda *how: None)


# of one thread, of one piece, of three; in one group of rows, and in several
CASES = [(3, 1, np.float32), (9, 40, BFLOAT16), (5, 2051, np.float16), (4, 2056, np.float32)]
cases = pytest.mark.parametrize(("n1", "n2", "dtype"), CASES, ids=lambda one: getattr(one, "__name__", str(one)))


@cases
def test_split_rows_are_within_the_bounds_forward(n1, n2, dtype, monkeypatch):
    split_short_rows(monkeypatch)
    case = random_case(n1, n2, dtype)
    for one in (case, random_case(n1, n2, dtype, rms=True), replace(case, weight=None, bias=None)):
        examine_forward(one, CLUSTERS)
    far = replace(case, x=(case.x.astype(np.float64) + 1000).astype(dtype))  # which E[x²] - E[x]² would not survive
    examine_forward(far, CLUSTERS)


@cases
@pytest.mark.parametrize("memory_efficient", [False, True, "exact"])
def test_gradients_of_split_rows_are_within_the_bounds(n1, n2, dtype, memory_efficient, monkeypatch):
    split_short_rows(monkeypatch)
    case = random_case(n1, n2, dtype)
    examine_backward(case, None, PIPELINED, memory_efficient)
    if n2 == 40:
        for other in (
            random_case(n1, n2, dtype, rms=True),
            replace(case, weight=None),
            replace(case, bias=None),
            replace(case, weight=None, bias=None),
            random_case(n1, n2, np.float32, parameters=dtype),
        ):
            if memory_efficient != "exact" or other.weight is not None or other.bias is not None:
                examine_backward(other, None, PIPELINED, memory_efficient)


@both_paths
def test_a_row_has_the_same_bits_in_every_batch_and_in_every_schedule(memory_efficient, monkeypatch):
    split_short_rows(monkeypatch)
    case = random_case(9, 1030, np.float32)
    if not memory_efficient:  # the forward has no such path
        assert_the_same_whenever_and_however_it_runs(case, CLUSTERS)
    first = replace(case, x=case.x[:2], grad_output=case.grad_output[:2])
    for step, how in ((CLUSTERS, None), (PIPELINED, memory_efficient)):
        want = results(case, step, how)[0]
        assert results(first, step, how)[0] == want[: len(want) // 9 * 2]
    assert_the_same_whenever_and_however_it_runs(case, PIPELINED, memory_efficient)


@cases
def test_nothing_is_found_in_split_rows(n1, n2, dtype, monkeypatch):
    """On one path each: those of one piece and those of several take them in turn."""
    split_short_rows(monkeypatch)
    with using("simulator"):
        sanitized(random_case(n1, n2, dtype), PIPELINED, (n1, n2) in ((9, 40), (5, 2051)))


@cases
def test_nothing_is_found_in_split_rows_forward(n1, n2, dtype, monkeypatch):
    split_short_rows(monkeypatch)
    case = random_case(n1, n2, dtype)
    memory = Memory()
    output, mean, invvar = memory.empty((n1, n2), dtype), *(memory.empty((n1,), np.float32) for _ in range(2))
    problem = ForwardProblem(case.x, case.weight, case.bias, np.float32(0.01), output, mean, invvar)
    with using("simulator"):
        CLUSTERS.run(launcher(memory), memory, problem)
    assert np.isfinite(output.astype(np.float64)).all()


@pytest.mark.skipif(not use_gpu(), reason="for a GPU: the simulator has no time for so long rows")
@both_paths
@pytest.mark.parametrize(("n1", "n2"), [(3, 300_001), (2, 1_200_000), (40, 262_152)])
def test_long_rows_are_within_the_bounds(n1, n2, memory_efficient):
    case = random_case(n1, n2, BFLOAT16)
    examine_forward(case, CLUSTERS)
    examine_backward(case, None, PIPELINED, memory_efficient)


def test_what_nothing_else_holds_is_split():
    def names(n2, step=PIPELINED, **form):
        return {one.name for one in launches(step, 8, n2, Form(BFLOAT16, BFLOAT16, **form))}

    for n2 in (262_153, 262_160, 3_211_264):
        for memory_efficient in (False, True):
            assert names(n2, memory_efficient=memory_efficient) >= set(KERNELS)
    for n2 in (8191, 8193, 131_071, 262_144, 262_139):
        assert not names(n2) & set(KERNELS)
    odd_view = {one.name for one in launches(PIPELINED, 8, 8193, Form(BFLOAT16, BFLOAT16), alignment=2)}
    assert odd_view >= set(KERNELS), "narrower vectors than an asynchronous copy, and too many for step 2"
    for n2 in (262_146, 262_152, 3_211_264):
        assert names(n2, CLUSTERS) == set(FORWARD_KERNELS)
    for n2 in (layouts.SPLIT_FROM - 1, layouts.SPLIT_FROM + 1, 262_139, layouts.LONGEST):
        assert not names(n2, CLUSTERS) & set(FORWARD_KERNELS)


def test_blocks_stand_above_each_other_where_a_gpu_would_idle_or_a_sum_be_long():
    assert split.groups_for(8, 3_211_264, 4, 132) == 1
    assert split.groups_for(2048, 8193, 1, 132) == 32
    assert split.groups_for(2048, 262_152, 8, 132) == 32
    assert split.groups_for(10, 8193, 1, 132) == 3, "four rows at once"


@pytest.mark.parametrize(
    ("capability", "dtype"), [((9, 0), BFLOAT16), ((9, 0), np.float32), ((8, 0), np.float32)], ids=str
)
def test_kernels_need_no_local_memory(capability, dtype):
    pytest.importorskip("numba_cuda", reason="kernels are assembled by numba-cuda, which has no wheels here")
    form = Form(dtype, dtype, memory_efficient="exact")
    for one in launches(PIPELINED, 8, 262_152, form) + launches(CLUSTERS, 8, 3_211_264, form):
        if one.name in (*KERNELS, *FORWARD_KERNELS):
            taken = resources(one.work.kernel, one.types, capability)
            assert (taken.local_bytes, taken.spill_stores) == (0, 0), (one.name, taken)
