"""Every kernel of the family compiled offline: nothing in local memory, float64 only for float64, nothing spilled."""

import ml_dtypes
import numpy as np
import pytest

from normlab.engine import compile_ptx, float32, float64, resources
from normlab.kernels.family import Sets, column_outputs, column_pieces, merge, planes, rows, running

pytest.importorskip("numba_cuda", reason="PTX is made by numba-cuda, which has no wheels for this platform")


def kernels(t, v):
    """(kernel, types) of every kernel, in its widest form; input T, parameters V."""
    u, dtype = (np.float64, float64) if t is np.float64 else (np.float32, float32)
    wide = 16 // np.dtype(t).itemsize
    row, x, weight, pieces, number = (u, 1), (t, 3), (v, 1), (u, 2), np.int64
    size = np.dtype(t).itemsize
    for run in (49, 8192):  # vectors of a plane: several planes a team, and several parts of a plane
        walked = planes.Planes(Sets(1, 64, 8, 1, run * wide), np.empty(0, t))
        yield planes.build_moments(dtype, wide, walked.finding), (x, number, pieces)
        yield planes.build_sums(dtype, wide, walked.finding, 4), (x, x, row, row, number, number, pieces)
        yield planes.build_output(dtype, wide, walked.forward), (x, row, row, weight, weight, number, number, x)
        yield planes.build_gradient(dtype, wide, walked.backward), (x, x, row, row, weight, row, row, number, number, x)
    for width in {wide, 1}:
        form, view = (dtype, size, width), (number, number)
        yield column_pieces.build_moments(*form, 32), (x, number, pieces)
        yield column_pieces.build_sums(*form, 32), (x, x, row, row, *view, pieces)
        yield column_outputs.build_output(*form), (x, row, row, weight, weight, *view, number, x)
        yield column_outputs.build_gradient(*form), (x, x, row, row, weight, row, row, *view, number, x)
    if u is np.float32:
        for values in (49 * wide, 8192 * 4):  # a warp a set, and the most that a block holds
            deal = rows.deal_for(Sets(1, 1, 1, 1, values), wide)
            yield rows.build(dtype, deal, 1), ((t, 2), weight, weight, u, number, number, row, row, (t, 2))
    yield merge.build_moments(dtype, 64), (pieces, number, number, number, u, row, row, row)
    yield merge.build_sums(dtype, 64), (pieces, *[number] * 5, weight, weight, u, row, row, weight, weight)
    yield running.family_update_running, (row, row, number, u, weight, weight)
    yield running.family_use_running, (weight, weight, u, row, row)


def test_float32_kernels_use_no_local_memory_and_no_float64():
    for kernel, types in kernels(np.float32, np.float32):
        ptx, name = compile_ptx(kernel, types), kernel.py_func.__name__
        assert ".local" not in ptx, f"{name} keeps an array in local memory"
        assert ".f64" not in ptx, f"{name} computes in float64"
        assert "call" not in ptx.replace(".callseq", ""), f"{name} calls a function that was not inlined"


# Those with most registers; the others have up to 64.
HEAVY = ("family_plane_gradient", "family_column_moments", "family_column_gradient", "family_rows")


def test_half_kernels_spill_nothing():
    for kernel, types in kernels(ml_dtypes.bfloat16, np.float32):
        name = kernel.py_func.__name__
        if name not in HEAVY:
            continue
        taken = resources(kernel, types)
        assert (taken.local_bytes, taken.spill_stores, taken.spill_loads) == (0, 0, 0), name
        assert taken.registers <= 128, name  # two blocks of 256 threads a multiprocessor at least
