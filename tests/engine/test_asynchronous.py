"""Asynchronous copies: the PTX, what does not compile, and the same results on a GPU as in the simulator."""

import ml_dtypes
import needs
import numpy as np
import pytest
from numba import cuda, float32, uint32
from numba.core.errors import TypingError

from normlab.engine import compile_ptx, gpu_available, launch, resources
from normlab.engine.device.asynchronous import commit_copies, copy_async, wait_copies


@cuda.jit
def pipeline(x, out):
    """Sums of the columns of x, (rows, 256), through two stages of a buffer."""
    tile = cuda.shared.array((2, 256), float32, 16)
    thread = cuda.threadIdx.x
    first = 4 * thread
    total = float32(0)
    if thread < 64:
        copy_async(tile, (0, first), x, (0, first), 4)
    commit_copies()
    for row in range(x.shape[0]):
        if row + 1 < x.shape[0] and thread < 64:
            copy_async(tile, ((row + 1) % 2, first), x, (row + 1, first), 4)
        commit_copies()
        wait_copies(1)
        cuda.syncthreads()
        total += tile[row % 2, 255 - thread]
        cuda.syncthreads()
    out[thread] = total


def test_a_pipeline_gives_the_same_everywhere():
    x, out = np.random.default_rng(0).integers(0, 99, (7, 256)).astype(np.float32), np.zeros(256, np.float32)
    launch(pipeline, 1, 256, x, out)
    np.testing.assert_array_equal(out, x.sum(0)[::-1])


@cuda.jit
def by_width(x, out):
    tile = cuda.shared.array(0, uint32)
    thread = cuda.threadIdx.x
    copy_async(tile, 4 * thread, x, 8 * thread, 4)
    copy_async(tile, 1024 + 2 * thread, x, 4 * thread, 2)
    copy_async(tile, 2048 + thread, x, 2 * thread, 1)
    copy_async(tile, 3072 + 8 * thread, x, 16 * thread, 8)
    commit_copies()
    wait_copies(0)
    cuda.syncthreads()
    for part in range(4):
        out[part, thread] = tile[1024 * part + 63 - thread]


def test_copies_of_4_to_32_bytes_take_pairs_of_bfloat16_into_dynamic_memory():
    x, out = np.arange(1024).astype(ml_dtypes.bfloat16), np.zeros((4, 64), np.uint32)
    launch(by_width, 1, 64, x, out, shared_bytes=4 * 4096)
    assert (out == x.view(np.uint32)[63::-1]).all()


@needs.compiler
@pytest.mark.parametrize("cc", [(8, 0), (9, 0)])
def test_each_width_has_its_instruction(cc):
    ptx = compile_ptx(by_width, ((ml_dtypes.bfloat16, 1), (np.uint32, 2)), cc)
    copies = [line.split() for line in ptx.splitlines() if "shared.global" in line]
    assert [(words[0], words[-1]) for words in copies] == [
        ("cp.async.cg.shared.global", "16;"),
        ("cp.async.ca.shared.global", "8;"),
        ("cp.async.ca.shared.global", "4;"),
        ("cp.async.cg.shared.global", "16;"),
        ("cp.async.cg.shared.global", "16;"),
    ]
    assert "cp.async.wait_group 0;" in ptx
    assert ".local" not in ptx


@needs.compiler
@pytest.mark.parametrize("cc", [(8, 0), (9, 0)])
def test_the_assembler_takes_the_ptx_without_spills(cc):
    taken = resources(pipeline, ((np.float32, 2), (np.float32, 1)), cc)
    assert (taken.shared_bytes, taken.local_bytes, taken.spill_stores) == (2048, 0, 0)


@cuda.jit
def read_before_and_after(x, out):
    tile = cuda.shared.array(4, float32, 16)
    copy_async(tile, 0, x, 0, 4)
    commit_copies()
    before = tile[0]
    wait_copies(0)
    out[0] = tile[0] - before


@needs.compiler
def test_no_load_of_shared_memory_moves_across_a_wait():
    ptx = compile_ptx(read_before_and_after, ((np.float32, 1), (np.float32, 1)))
    kinds = ("cp.async.cg", "cp.async.commit_group", "ld.shared", "cp.async.wait_group")
    found = [next(kind for kind in kinds if kind in line) for line in ptx.splitlines() if any(k in line for k in kinds)]
    assert found == [*kinds[:3], "cp.async.wait_group", "ld.shared"]


@cuda.jit
def three_at_a_time(x, out):
    tile = cuda.shared.array(8, float32)
    copy_async(tile, 0, x, 0, 3)


@cuda.jit
def half_an_element(x, out):
    tile = cuda.shared.array(8, float32)
    copy_async(tile, 0, out, 0, 1)


@cuda.jit
def not_a_literal(x, out):
    tile = cuda.shared.array(8, float32)
    copy_async(tile, 0, x, 0, x.shape[0])


@cuda.jit
def less_than_none(x, out):
    wait_copies(-1)


@needs.compiler
@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        (three_at_a_time, "moves 4, 8 or 16 bytes at a time and whole elements, but 3 x float32 are 12"),
        (half_an_element, "1 x float32 are 4 bytes, to come from elements of float64"),
        (not_a_literal, "No implementation of function Function.<intrinsic copy_async>"),
        (less_than_none, "leaves 0 groups or more on their way, not -1|No implementation"),
    ],
)
def test_what_no_instruction_does_is_refused_when_it_is_compiled(kernel, text):
    with pytest.raises(TypingError, match=text):
        compile_ptx(kernel, ((np.float32, 1), (np.float64, 1)))


@pytest.mark.skipif(not gpu_available(), reason="needs a GPU")
def test_a_gpu_sums_many_rows_through_the_pipeline():
    x, out = np.random.default_rng(1).integers(0, 99, (1001, 256)).astype(np.float32), np.zeros(256, np.float32)
    launch(pipeline, 1, 256, x, out)
    np.testing.assert_array_equal(out, x.sum(0)[::-1])
