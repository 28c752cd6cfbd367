"""Every kernel of the family compiled offline: nothing in local memory, float64 only for float64, nothing spilled."""

import devices
import ml_dtypes
import numpy as np
import pytest
from machine_code import resources_in_float32
from watching import Memory

from normlab.engine import block_shared_bytes, compile_ptx, float32, float64, occupancy, resources
from normlab.kernels.family import (
    Gradients,
    Outputs,
    Sets,
    column_fused,
    column_outputs,
    column_pieces,
    fused,
    merge,
    planes,
    rows,
    running,
)
from normlab.kernels.family.fused import plan_for

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
        plan = plan_for(Sets(1, 2**18, 64, 1, 1), wide, size, devices.of((9, 0)))
        form, found = (size, wide, plan.across, plan.down), (number, pieces, (np.int32, 1))
        yield column_fused.build_forward(*form, 27, 18), (x, weight, weight, u, *found, row, row, row, x)
        yield column_fused.build_backward(*form, 13, 8), (x, x, row, row, weight, *found, x, weight, weight)
        for values in (49 * wide, 8192 * 4):  # a warp a set, and the most that a block holds
            thread_map = rows.thread_map_for(Sets(1, 1, 1, 1, values), wide)
            yield rows.build(dtype, thread_map, 1), ((t, 2), weight, weight, u, number, number, row, row, (t, 2))
    yield merge.build_moments(dtype, 64), (pieces, number, number, number, u, row, row, row)
    yield merge.build_sums(dtype, 64), (pieces, *[number] * 5, weight, weight, u, row, row, weight, weight)
    yield running.family_update_running, (row, row, number, u, weight, weight)
    yield running.family_use_running, (weight, weight, u, row, row)


# Those with most registers; the others have up to 64.
HEAVY = (
    "family_plane_gradient",
    "family_column_moments",
    "family_column_gradient",
    "family_column_forward",
    "family_column_backward",
    "family_rows",
)


def test_float32_kernels_use_no_local_memory_and_no_float64():
    for kernel, types in kernels(np.float32, np.float32):
        ptx, name = compile_ptx(kernel, types), kernel.py_func.__name__
        assert ".local" not in ptx, f"{name} keeps an array in local memory"
        assert ".f64" not in ptx, f"{name} computes in float64"
        assert "call" not in ptx.replace(".callseq", ""), f"{name} calls a function that was not inlined"


def test_half_kernels_spill_nothing_and_use_no_float64():
    for kernel, types in kernels(ml_dtypes.bfloat16, np.float32):
        name = kernel.py_func.__name__
        if name not in HEAVY:
            continue
        taken = resources_in_float32(kernel, types)
        assert (taken.local_bytes, taken.spill_stores, taken.spill_loads) == (0, 0, 0), name
        assert taken.registers <= 128, name  # two blocks of 256 threads a multiprocessor at least


@pytest.mark.parametrize(
    ("t", "channels"),  # blocks that are 16 and 32 vectors across, and 8 and 32; 16 are as in float32
    [(np.float32, 64), (np.float32, 256), (ml_dtypes.bfloat16, 64), (ml_dtypes.bfloat16, 1024)],
)
def test_a_block_of_a_pass_in_one_kernel_fits_on_a_multiprocessor(t, channels):
    launched, like = [], np.empty((1, 2**18, 0), t)

    def launch(kernel, grid, block, *operands, shared_bytes):
        launched.append((kernel, block, shared_bytes))

    wide = 16 // like.itemsize
    sets = Sets(1, 2**18, channels, 1, 1)
    plan = plan_for(sets, wide, like.itemsize, devices.of((9, 0)))
    row, memory = np.empty(channels, np.float32), Memory()
    fused.launch_forward(launch, memory, plan, Outputs(sets, like, row, row, np.float32(1), row, row, row, like))
    fused.launch_backward(launch, memory, plan, Gradients(sets, like, like, row, row, row, True, like, row, row))
    u, x = (np.float32, 1), (t, 3)
    found = np.int64, (np.float32, 2), (np.int32, 1)
    types = (x, u, u, np.float32, *found, u, u, u, x), (x, x, u, u, u, *found, x, u, u)
    for (kernel, (across, down), shared_bytes), taken in zip(launched, types, strict=True):
        needed = resources(kernel, taken)
        assert occupancy(needed.registers, needed.shared_bytes + shared_bytes, across * down).blocks == 1
        assert shared_bytes > 0.9 * block_shared_bytes((9, 0))
