"""Every kernel compiled offline: no float64 arithmetic in float32 kernels, nothing in local memory."""

import ml_dtypes
import numpy as np
import pytest

from normlab.engine import compile_ptx, float32, float64
from normlab.kernels import LADDERS
from normlab.kernels.backward import step_0_global_atomics, step_1_apex
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
TARGETS = pytest.mark.parametrize("cc", [(8, 0), (9, 0)], ids=["sm_80", "sm_90"])


def compiled(t, v, rms, cc):
    """PTX by kernel name: every kernel of both ladders for input T and parameters V, all parameters present."""
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
    for memory_efficient in (False, True):
        saved, saved_mean = ((v, 2), None) if memory_efficient else ((t, 2), mean)
        operands = ((v, 2), saved, saved_mean, (u, 1), weight, bias, u)
        totals = ((u, 1), None if rms else (u, 1))
        parts = ((u, 2), None if rms else (u, 2))
        kernels += [
            (step_0_global_atomics.build(dtype, rms, memory_efficient), (*operands, saved, *totals)),
            (step_1_apex.build_partial_sums(dtype, memory_efficient), (*operands, np.int64, *parts)),
            (step_1_apex.build_grad_input(dtype, rms, memory_efficient), (*operands, saved)),
        ]
    return [(kernel.py_func.__name__, compile_ptx(kernel, types, cc)) for kernel, types in kernels]


@TARGETS
@pytest.mark.parametrize("rms", [False, True], ids=["layer", "rms"])
@pytest.mark.parametrize(("t", "v"), TYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_kernels_use_no_local_memory_and_float64_only_for_float64(t, v, rms, cc):
    for name, ptx in compiled(t, v, rms, cc):
        assert ".local" not in ptx, f"{name} keeps an array in local memory"
        assert (".f64" in ptx) == (t is np.float64), f"{name} computes in the wrong precision"
        assert "call" not in ptx.replace(".callseq", ""), f"{name} calls a function that was not inlined"


def test_the_saved_input_path_has_no_division_by_gamma():
    ptx = dict(compiled(np.float32, np.float32, False, (9, 0)))  # the later entry of a name: memory_efficient
    saved = compile_ptx(
        step_1_apex.build_partial_sums(float32, False),
        ((np.float32, 2), (np.float32, 2), (np.float32, 1), (np.float32, 1), (np.float32, 1), (np.float32, 1),
         np.float32, np.int64, (np.float32, 2), (np.float32, 2)),
    )  # fmt: skip
    assert "div.rn.f32" not in saved
    assert "div.rn.f32" in ptx["backward_apex_partial_sums"]


def test_every_step_of_the_ladders_is_compiled_here():
    assert [step.name for step in LADDERS["forward"]] == [
        "thread_per_row", "block_tree", "warp_shuffle", "apex", "column_blocks",
    ]  # fmt: skip
    assert [step.name for step in LADDERS["backward"]] == ["global_atomics", "apex"]
