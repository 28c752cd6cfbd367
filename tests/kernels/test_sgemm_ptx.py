"""The SGEMM ladder compiled offline: what its steps promise of registers, of fused operations and of vectors."""

import re

import numpy as np
import pytest
from products import operands, run

from normlab.engine import compile_ptx, occupancy, resources
from normlab.engine.compile import cubins
from normlab.engine.compile.signatures import kinds_of_types
from normlab.kernels import LADDERS
from normlab.kernels.sgemm import step_11_pipelined
from normlab.kernels.sgemm.product import Widths

pytest.importorskip("numba_cuda", reason="PTX is made by numba-cuda, which has no wheels for this platform")
STEPS = {step.name: step for step in LADDERS["sgemm"]}
MATRIX = (np.float32, 2)
TYPES = (np.float32, MATRIX, MATRIX, np.float32, None, MATRIX)
# step: fused operations in the main loop, blocks a multiprocessor
PROMISED = {
    "naive": (None, 2),
    "coalesced": (None, 2),
    "shared_tile": (32, 2),
    "inner_product": (512, 1),
    "outer_product": (512, 1),
    "vectors": (512, 2),
    "padded": (512, 2),
    "warp_tile": (512, 2),
    "z_order": (512, 2),
    "double_buffer": (512, 2),
    "block_order": (512, 2),
    "pipelined": (2 * 1536, 2),  # a loop for whole tiles, one for the others
}


def launched(step, n):
    """The kernel that a step launches for n x n, its threads a block and its dynamic shared memory."""
    found = []

    def start(kernel, grid, block, *arguments, shared_bytes=0):
        found.append((kernel, int(np.prod(block)), shared_bytes))

    run(step, operands(n, n, n), start)
    (one,) = found
    return one


def count(ptx, pattern):
    return len(re.findall(pattern, ptx))


@pytest.mark.parametrize("name", STEPS)
def test_a_step_keeps_its_sums_in_registers_and_fuses_every_operation(name):
    kernel, threads, shared_bytes = launched(STEPS[name], 128)
    ptx = compile_ptx(kernel, TYPES)
    fused, blocks = PROMISED[name]
    assert not {word for word in (".local", ".f64", "call.") if word in ptx}
    assert count(ptx, r"\badd(\.rn)?\.f32") == 0  # every addition is in a fma
    assert fused is None or count(ptx, r"fma\.rn\.f32") == fused
    used = resources(kernel, TYPES)
    assert (used.local_bytes, used.spill_stores, used.spill_loads) == (0, 0, 0)
    assert occupancy(used.registers, used.shared_bytes + shared_bytes, threads).blocks == blocks


@pytest.mark.parametrize("name", ["double_buffer", "pipelined"])
def test_a_step_compiles_for_an_a100_without_spills_too(name):
    kernel, _, _ = launched(STEPS[name], 128)
    used = resources(kernel, TYPES, (8, 0))
    assert (used.local_bytes, used.spill_stores, used.spill_loads) == (0, 0, 0)
    assert used.registers <= 255


def test_vectors_are_16_bytes_where_rows_allow_it_and_single_elements_where_not():
    step = STEPS["vectors"]
    for n, width in ((128, 4), (130, 2), (131, 1)):
        ptx = compile_ptx(launched(step, n)[0], TYPES)
        ending = {4: r"\.v4\.[bf]32", 2: r"\.v2\.[bf]32", 1: r"\.[bf]32"}[width]
        assert count(ptx, r"ld\.global" + ending) == 2 * 4 // width  # four elements of A and of B a thread
        assert count(ptx, r"st\.global" + ending) == 64 // width
        assert count(ptx, r"ld\.shared\.v4\.[bf]32") == 8 * 4  # a k: 8 elements of A and 8 of B


def test_the_copies_of_the_pipelined_step_are_asynchronous():
    ptx = compile_ptx(step_11_pipelined.build(step_11_pipelined.PLAN, Widths(4, 4, 4)), TYPES)
    assert count(ptx, r"ld\.global") == 0
    assert count(ptx, r"cp\.async\.cg\.shared\.global \[\S+ \+ 0\], \[\S+ \+ 0\], 16") > 0


def test_c_is_no_argument_of_a_kernel_that_does_not_read_it():
    kernel, _, _ = launched(STEPS["vectors"], 128)
    without = compile_ptx(kernel, TYPES)
    with_c = compile_ptx(kernel, (*TYPES[:4], MATRIX, MATRIX))
    assert count(with_c, r"ld\.global") == count(without, r"ld\.global") + 64 // 4
    assert count(with_c, r"fma\.rn\.f32") == count(without, r"fma\.rn\.f32") + 64


def test_every_kernel_is_kept_on_disk_under_a_name_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("NORMLAB_CACHE_DIR", str(tmp_path))
    kernels = [launched(step, n)[0] for step in LADDERS["sgemm"] for n in (128, 130)]
    plan = step_11_pipelined.PLAN._replace(stages=4)
    kernels += [step_11_pipelined.build(plan, Widths(4, 4, 4))]
    paths = {kernel: cubins._path(kernel, kinds_of_types(TYPES), (9, 0)) for kernel in kernels}
    assert None not in paths.values()
    assert len(set(paths.values())) == len(paths) == 5 + 7 * 2 + 1  # five do not ask for widths
