"""Gated norms of rows that lie apart in memory, x and gate: the bits of contiguous ones, without a copy."""

from unittest.mock import patch

import ml_dtypes
import numpy as np
import pytest

from normlab import gated_rms_norm_backward, gated_rms_norm_forward
from normlab.engine import using
from normlab.host import gated_norm
from normlab.stages.row_map import RowMap

EPS = 1e-6
DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float64": np.float64}
MODES = {"saved": (True, False), "recompute": (True, True), "gated x": (False, False)}  # (before, memory_efficient)


def fused(columns, dtype, heads, tokens=5):
    """Two views of a tensor of seven places per token: x, three heads or one row of places, and the gate, two apart."""
    rng = np.random.default_rng(columns)
    memory = rng.normal(size=(tokens, 7, columns)).astype(DTYPES[dtype])
    if heads:
        return memory[:, 1:4], memory[:, 4:7]
    return memory.reshape(tokens, 7 * columns)[:, columns : 2 * columns], memory[:, 4]


def results(x, gate, grad, weight, mode):
    """All results of a norm and its backward."""
    before, memory_efficient = MODES[mode]
    output, invvar = gated_rms_norm_forward(x, gate, weight, eps=EPS, norm_before_gate=before)
    how = {"eps": EPS, "norm_before_gate": before, "memory_efficient": memory_efficient}
    saved = output if memory_efficient else x
    return output, invvar, *gated_rms_norm_backward(grad, saved, gate, invvar, weight, **how)


def hold(columns, dtype, heads, mode):
    """Assert that views have the bits of copies; return the views."""
    x, gate = fused(columns, dtype, heads)
    rng = np.random.default_rng(1)
    grad, weight = (rng.normal(size=size).astype(x.dtype) for size in (x.shape, columns))
    rung = type(gated_norm.FORWARD)
    with using("simulator"):  # a GPU would get a copy of views
        wanted = results(np.ascontiguousarray(x), np.ascontiguousarray(gate), grad, weight, mode)
        with patch.object(rung, "run", autospec=True, side_effect=rung.run) as run:
            found = results(x, gate, grad, weight, mode)
    for got, want in zip(found, wanted, strict=True):
        assert got.tobytes() == want.tobytes()
    return x, gate, [call.args[3] for call in run.call_args_list]


@pytest.mark.parametrize("mode", MODES)
def test_rows_are_read_where_they_lie_and_have_a_copy_s_bits(mode):
    for columns, dtype, heads in ((64, "bfloat16", True), (128, "bfloat16", False), (40, "float32", True)):
        x, gate, (forward, backward) = hold(columns, dtype, heads, mode)
        lie = RowMap(3 if heads else 1, 7)
        assert (forward.row_map, forward.gate_map, backward.gate_map) == (lie, lie, lie)
        assert np.shares_memory(forward.x, x)
        assert np.shares_memory(forward.gate, gate)
        assert np.shares_memory(backward.gate, gate)
        if mode != "recompute":
            assert np.shares_memory(backward.saved, x)


@pytest.mark.parametrize(("columns", "dtype"), [(33, "bfloat16"), (64, "float64")])
def test_what_the_fast_kernels_refuse_is_copied_and_right(columns, dtype):
    *_, problems = hold(columns, dtype, True, "saved")
    assert problems[1].gate_map is None
