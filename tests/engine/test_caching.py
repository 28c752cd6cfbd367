"""Reads that L2 gives up last: the values of all worlds, and PTX whose every hint has its policy beside it."""

import re
from functools import cache

import ml_dtypes
import needs
import numpy as np
import pytest
from numba import cuda, float32, float64

from normlab.engine import compile_ptx, launch, load_vector_evict_last, resources, store_vector_from

FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
CASES = [(dtype, size // np.dtype(dtype).itemsize) for dtype in FLOATS for size in (2, 4, 8, 16, 32)]
every_width = pytest.mark.parametrize(
    ("dtype", "width"), [case for case in CASES if case[1]], ids=lambda one: getattr(one, "__name__", str(one))
)


@cache
def loader(dtype, width):
    """A kernel: y = x, a vector a thread, behind a condition that lanes of a warp decide differently."""
    kind = float64 if dtype == np.float64 else float32

    @cuda.jit
    def copy(x, y):
        values = cuda.local.array(width, kind)
        first = cuda.grid(1) * width
        if first < x.shape[0]:
            load_vector_evict_last(values, 0, x, first, width)
            store_vector_from(y, first, values, 0, width)

    return copy


@every_width
def test_vectors_come_unchanged(dtype, width):
    x = np.random.default_rng(width).normal(size=50 * width).astype(dtype)
    y = np.full_like(x, np.nan)
    launch(loader(dtype, width), 1, 64, x, y)
    np.testing.assert_array_equal(y, x)


@needs.compiler
@every_width
def test_each_vector_has_its_instruction(dtype, width):
    ptx = compile_ptx(loader(dtype, width), ((dtype, 1), (dtype, 1)))
    words = width * np.dtype(dtype).itemsize // 4
    kind = {0: None, 1: "b32", 2: "v2.b32"}.get(words, "v4.b32")
    found = re.findall(r"ld\.global\.L2::cache_hint\.(\S+)", ptx)
    assert found == ([] if kind is None else [kind] * max(1, words // 4))
    assert ".local" not in ptx


@cuda.jit
def column_sums(x, out):
    """Sums of the columns of x, (rows, columns), four to a thread; some have none."""
    values = cuda.local.array(4, float32)
    sums = cuda.local.array(4, float32)
    first = 4 * cuda.threadIdx.x
    for k in range(4):
        sums[k] = 0
    for row in range(x.shape[0]):
        if first < x.shape[1]:
            load_vector_evict_last(values, 0, x, (row, first), 4)
            for k in range(4):
                sums[k] += values[k]
    store_vector_from(out, first, sums, 0, 4)


def test_a_loop_gives_the_same_everywhere():
    x, out = np.random.default_rng(0).integers(0, 99, (9, 148)).astype(np.float32), np.full(256, np.nan, np.float32)
    launch(column_sums, 1, 64, x, out)
    np.testing.assert_array_equal(out, np.pad(x.sum(0), (0, 108)))


@needs.compiler
def test_a_policy_is_made_where_it_is_used():
    ptx = compile_ptx(column_sums, ((np.float32, 2), (np.float32, 1)))
    uses = 0
    for block in re.split(r"^\$L\S+:", ptx, flags=re.MULTILINE):
        made = set(re.findall(r"createpolicy\S+ (%rd\d+)", block))
        used = re.findall(r"L2::cache_hint.*(%rd\d+);", block)
        assert made >= set(used)
        uses += len(used)
    assert uses >= 1


@needs.compiler
@pytest.mark.parametrize("cc", [(8, 0), (9, 0)])
def test_the_assembler_takes_the_ptx(cc):
    taken = resources(column_sums, ((np.float32, 2), (np.float32, 1)), cc)
    assert (taken.local_bytes, taken.spill_stores) == (0, 0)
