"""Every kernel compiled offline: no float64 arithmetic in float32 kernels, nothing in local memory.

The fast steps' kernels, which take a second each: `test_plans`.
"""

import os

import ml_dtypes
import numpy as np
import pytest

from normlab.engine import compile_ptx, float32, float64
from normlab.kernels import LADDERS
from normlab.kernels.backward import final_sums, step_0_global_atomics, step_1_apex
from normlab.kernels.exact import repair, spread
from normlab.kernels.exact.choose import choose_columns
from normlab.kernels.exact.correct import correct_rows
from normlab.kernels.exact.keep import keep_columns
from normlab.kernels.exact.survey import survey_columns
from normlab.kernels.forward import (
    step_0_thread_per_row,
    step_1_block_tree,
    step_2_warp_shuffle,
    step_3_apex,
    step_4_column_blocks,
)

pytest.importorskip("numba_cuda", reason="PTX is made by numba-cuda, which has no wheels for this platform")
BFLOAT16 = ml_dtypes.bfloat16
TYPES = [
    (np.float32, np.float32),
    (np.float16, np.float16),
    (BFLOAT16, BFLOAT16),
    (np.float32, BFLOAT16),
    (np.float16, np.float32),
    (np.float64,) * 2,
]
# Every kernel is compiled for these, and for one of the other four; NORMLAB_ALL_PLANS=1: for all.
WHOLE = (np.float32, np.float64)
FULL = bool(os.environ.get("NORMLAB_ALL_PLANS"))
# (T, V, rms, target): the instructions differ little between targets and norms, so these stand for the others.
FORMS = [(t, v, (t, v) == (np.float32, BFLOAT16), (8, 0) if t is v is np.float16 else (9, 0)) for t, v in TYPES]


def compiled(t, v, rms, cc):
    """PTX by kernel name: kernels of both ladders for input T and parameters V, all parameters present."""
    u, dtype = (np.float64, float64) if t is np.float64 else (np.float32, float32)
    weight, bias, mean = (v, 1), None if rms else (v, 1), None if rms else (u, 1)
    forward = ((t, 2), weight, bias, u, (v, 2), mean, (u, 1))
    kernels = [
        (step_0_thread_per_row.forward_thread_per_row, forward),
        (step_1_block_tree.build(dtype), forward),
        (step_2_warp_shuffle.build(dtype), forward),
        (step_3_apex.build(dtype), forward),
        (step_4_column_blocks.build(dtype, 128), forward),
        (step_0_global_atomics.round_totals, ((u, 1), (v, 1))),
        (step_1_apex.build_final_sums(dtype), ((u, 2), (v, 1))),
    ]
    if t is v:  # mixed dtypes change nothing in these
        kernels += exact_kernels(t, v, weight, bias, mean, u, dtype)
    for memory_efficient in (False, True):
        saved, saved_mean = ((v, 2), None) if memory_efficient else ((t, 2), mean)
        operands = ((v, 2), saved, saved_mean, (u, 1), weight, bias, u)
        row_sums = (u, 2) if memory_efficient else None
        totals = ((u, 1), None if rms else (u, 1))
        parts = ((u, 2), None if rms else (u, 2))
        kernels += [
            (step_0_global_atomics.build(dtype, rms, memory_efficient), (*operands, row_sums, (t, 2), *totals)),
            (step_1_apex.build_partial_sums(dtype, memory_efficient), (*operands, np.int64, *parts)),
            (step_1_apex.build_grad_input(dtype, rms, memory_efficient), (*operands, row_sums, (t, 2))),
        ]
    if not (FULL or t is v in WHOLE):
        kernels = kernels[FORMS.index((t, v, rms, cc)) - 1 :: 4]
    if t is v is BFLOAT16:
        for width, columns in ((4, 32), (4, 8), (1, 8)):
            kernels.append((final_sums.build(dtype, width, columns, 0.5), ((u, 2), (u, 2), weight, bias, (v, 1), u)))
    return [(kernel.py_func.__name__, compile_ptx(kernel, types, cc)) for kernel, types in kernels]


def exact_kernels(t, v, weight, bias, mean, u, dtype):
    """What the exact mode adds to a step."""
    columns, kept, rows = (np.int32, 1), (v, 2), (u, 2)
    kernels = [
        (spread.build(dtype), ((u, 1), u, u, (u, 1))),
        (choose_columns, (np.int64, weight, bias, (u, 1), u, u, u, columns, (np.int64, 1))),
        (survey_columns, ((np.int64, 2), weight, bias, (u, 1), u, u, u, columns, (np.int64, 1))),
        (keep_columns, ((t, 2), mean, (u, 1), columns, kept)),
        (correct_rows, ((v, 2), (v, 2), weight, bias, columns, kept, rows)),
        (repair.build(dtype), ((v, 2), (u, 1), weight, columns, kept, rows, np.int64, (v, 2), weight and (u, 2))),
    ]
    return kernels + ([(repair.scatter_sums, ((u, 2), columns, (v, 1)))] if weight else [])


@pytest.mark.parametrize(("t", "v", "rms", "cc"), FORMS)
def test_kernels_use_no_local_memory_and_float64_only_for_float64(t, v, rms, cc):
    for name, ptx in compiled(t, v, rms, cc):
        assert ".local" not in ptx, f"{name} keeps an array in local memory"
        assert (".f64" in ptx) == (t is np.float64), f"{name} computes in the wrong precision"
        assert "call" not in ptx.replace(".callseq", ""), f"{name} calls a function that was not inlined"


@pytest.mark.parametrize("given", ["weight", "bias"])
def test_the_exact_mode_s_kernels_compile_without_what_may_be_absent(given):
    """RMSNorm's have no bias and no mean; a LayerNorm may have a bias alone."""
    v = BFLOAT16 if given == "weight" else np.float32
    weight, bias, mean = ((v, 1), None, None) if given == "weight" else (None, (v, 1), (np.float32, 1))
    for kernel, types in exact_kernels(np.float32, v, weight, bias, mean, np.float32, float32):
        ptx = compile_ptx(kernel, types)
        assert ".local" not in ptx
        assert ".f64" not in ptx


def test_the_saved_input_path_has_no_division_by_gamma():
    row, matrix = (np.float32, 1), (np.float32, 2)
    types = (matrix, matrix, row, row, row, row, np.float32, np.int64, matrix, matrix)
    saved, recomputed = (compile_ptx(step_1_apex.build_partial_sums(float32, me), types) for me in (False, True))
    assert "div.rn.f32" not in saved
    assert "div.rn.f32" in recomputed


def test_every_step_of_the_ladders_is_compiled_here():
    assert [step.name for step in LADDERS["forward"]] == [
        "thread_per_row", "block_tree", "warp_shuffle", "apex", "column_blocks", "vectors", "one_barrier", "clusters",
    ]  # fmt: skip
    assert [step.name for step in LADDERS["backward"]] == ["global_atomics", "apex", "fused", "pipelined"]
