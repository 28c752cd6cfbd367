"""Rows that are cut into pieces: right in every form, with the same bits in every batch, and nothing is found."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from examine import examine_backward
from kernels.test_invariance import random_case, results, sanitized
from kernels.test_plans import Form, launches

from normlab.arguments import step_of
from normlab.engine import resources, use_gpu, using
from normlab.kernels.backward import split_rows, step_2_fused, step_3_pipelined

BFLOAT16 = ml_dtypes.bfloat16
PIPELINED = step_of("backward", "pipelined")
KERNELS = ["backward_split_sums", "backward_split_means", "backward_split_gradients"]
both_paths = pytest.mark.parametrize("memory_efficient", [False, True])


def split_short_rows(monkeypatch):
    """Let rows be cut into pieces that are not too long for anything else."""
    monkeypatch.setattr(step_3_pipelined, "layout_for", lambda *how: None)
    monkeypatch.setattr(step_2_fused, "deal_of", lambda problem: None)


# of one thread, of one piece, of three; in one group of rows, and in several
CASES = [(3, 1, np.float32), (9, 40, BFLOAT16), (5, 2051, np.float16), (4, 2056, np.float32)]
cases = pytest.mark.parametrize(("n1", "n2", "dtype"), CASES, ids=lambda one: getattr(one, "__name__", str(one)))


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
    first = replace(case, x=case.x[:2], grad_output=case.grad_output[:2])
    want = results(case, PIPELINED, memory_efficient)
    assert results(first, PIPELINED, memory_efficient)[0] == want[0][: len(want[0]) // 9 * 2]
    with using("simulator"):
        here = results(case, PIPELINED, memory_efficient)
    with using("simulator", "reverse"):
        assert results(case, PIPELINED, memory_efficient) == here


@cases
@both_paths
def test_nothing_is_found_in_split_rows(n1, n2, dtype, memory_efficient, monkeypatch):
    split_short_rows(monkeypatch)
    with using("simulator"):
        sanitized(random_case(n1, n2, dtype), PIPELINED, memory_efficient)


@pytest.mark.skipif(not use_gpu(), reason="for a GPU: the simulator has no time for so long rows")
@both_paths
@pytest.mark.parametrize(("n1", "n2"), [(3, 300_001), (2, 1_200_000), (200, 262_152)])
def test_long_rows_are_within_the_bounds(n1, n2, memory_efficient):
    examine_backward(random_case(n1, n2, BFLOAT16), None, PIPELINED, memory_efficient)


def test_what_nothing_else_holds_is_split():
    def names(n2, **form):
        return {one.kernel.py_func.__name__ for one in launches(PIPELINED, 8, n2, Form(BFLOAT16, BFLOAT16, **form))}

    for n2 in (8193, 262_145, 262_152, 3_211_264):
        for memory_efficient in (False, True):
            assert names(n2, memory_efficient=memory_efficient) >= set(KERNELS)
    assert not names(8191) & set(KERNELS)
    assert not names(262_144) & set(KERNELS)


def test_blocks_stand_above_each_other_where_a_gpu_would_idle_or_a_sum_be_long():
    assert split_rows.groups_for(8, 3_211_264, 4, 132) == 1
    assert split_rows.groups_for(2048, 8193, 1, 132) == 32
    assert split_rows.groups_for(2048, 262_152, 8, 132) == 32
    assert split_rows.groups_for(10, 8193, 1, 132) == 3, "four rows at once"


@pytest.mark.parametrize("capability", [(8, 0), (9, 0)], ids=str)
def test_kernels_need_no_local_memory(capability):
    pytest.importorskip("numba_cuda", reason="kernels are assembled by numba-cuda, which has no wheels here")
    for t, v in ((BFLOAT16, BFLOAT16), (np.float16, np.float16), (np.float32, np.float32), (np.float32, BFLOAT16)):
        for memory_efficient in (False, "exact"):
            for one in launches(PIPELINED, 8, 262_152, Form(t, v, memory_efficient=memory_efficient)):
                if one.kernel.py_func.__name__ in KERNELS:
                    taken = resources(one.kernel, one.types, capability)
                    assert (taken.local_bytes, taken.spill_stores) == (0, 0), (one.kernel.py_func.__name__, taken)
