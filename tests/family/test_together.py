"""Batch norm of channels last in one kernel a pass: within bounds, nothing found, no row in a ring read again."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from draws import DTYPES
from family.examples import channels_last, example, few_blocks
from family.test_traffic import COPIED, SECTOR, STORED
from sim.sanitizing.test_ladders import Memory, launcher

from normlab import family
from normlab.engine import gpu_available, using
from normlab.kernels import family as kernels
from normlab.kernels.family import together
from normlab.kernels.family.sets import Sets
from normlab.sim import trace

# (N, C, *spatial): ten vectors, 34 in two stacks (in 16 bits half as many, in one), a matrix, few vectors
SHAPES = [(2, 40, 9, 8), (2, 136, 53), (301, 16), (1, 8, 2, 3, 101)]


def walked(one):
    """The walk of an example, with x and dy as kernels take them."""
    view = family.view_of(one.x)
    sets = view.sets(one.norm, one.x.shape[1])
    x, dy = (np.ascontiguousarray(view.laid(array)).reshape(sets.shape) for array in (one.x, one.grad_output))
    return kernels.walk(sets, x, dy), x, dy


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_all_is_within_bounds_and_the_same_in_every_schedule(monkeypatch, shape, dtype):
    few_blocks(monkeypatch)
    one = example("batch", shape, dtype, "float32" if dtype == "float16" else dtype, last=len(shape) > 2, offset=3.0)
    assert walked(one)[0].together is not None
    with using("simulator"):
        results = one.examine()
    with using("simulator", "reverse"):
        forward = one.forward()
        for got, want in zip((*forward, *one.backward(*forward[1:])), results, strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("ring", [1, 4, 100])
def test_a_ring_may_have_one_slot_or_all(monkeypatch, ring):
    few_blocks(monkeypatch, ring)
    one = example("batch", (2, 40, 9, 8), last=True)
    with using("simulator"):
        one.examine()


@pytest.mark.parametrize("affine", ["weight", "bias", "none"])
def test_parameters_may_be_absent_and_rows_few(monkeypatch, affine):
    few_blocks(monkeypatch)
    one = example("batch", (2, 40, 5, 5), affine=affine, last=True)
    few = example("batch", (16, 64, 3), affine=affine, last=True)
    for case in (one, few):  # few have room in the forward's ring
        assert walked(case)[0].together is not None
        with using("simulator"):
            case.examine()


def test_running_statistics_are_those_of_three_kernels_up_to_rounding(monkeypatch):
    one = example("batch", (2, 40, 9, 8), last=True, offset=3.0)
    found = []
    for few in (False, True):
        if few:
            few_blocks(monkeypatch)
        running = np.zeros(40, np.float32), np.ones(40, np.float32)
        with using("simulator"):
            family.batch_norm(one.x, *running, one.weight, one.bias)
        assert (walked(one)[0].together is not None) == few
        found.append(running)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)


@pytest.mark.parametrize(("shape", "dtype", "schedule"), [
    ((2, 40, 9, 8), "float32", "reverse"),
    ((1, 136, 53), "bfloat16", 5),
    ((1, 136, 23), "float32", "forward"),
])  # fmt: skip
def test_nothing_is_found_in_either_kernel(monkeypatch, shape, dtype, schedule):
    few_blocks(monkeypatch)
    one = example("batch", shape, dtype, last=True)
    walk, x, dy = walked(one)
    assert walk.together is not None
    memory = Memory()
    launch = launcher(memory, schedule)
    mean, variance, invvar = (memory.empty((shape[1],), np.float32) for _ in range(3))
    output, grad_input = (memory.empty(x.shape, x.dtype) for _ in range(2))
    grads = [memory.empty((shape[1],), DTYPES[dtype]) for _ in range(2)]
    statistics = np.float32(1e-5), mean, variance, invvar
    kernels.forward(launch, memory, walk, x, one.weight, one.bias, *statistics, output)
    kernels.gradients(launch, memory, walk, dy, x, mean, invvar, one.weight, True, grad_input, *grads)
    assert not memory.empties


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_pass_is_one_kernel_that_reads_no_row_again_that_its_ring_holds(monkeypatch, dtype):
    few_blocks(monkeypatch)
    x = channels_last(np.zeros((2, 32, 16, 16), DTYPES[dtype]))
    one = example("batch", x.shape, dtype, last=True)
    walk, x, dy = walked(one)
    plan, found = walk.together, []

    def launch(kernel, grid, block, *operands, shared_bytes):
        found.append((kernel.py_func.__name__, trace(kernel)[grid, block, 0, shared_bytes](*operands).metrics))
        rows.append(shared_bytes // 1024)  # of 64 threads and 16 bytes

    rows = []
    mean, invvar, grads = *np.zeros((2, 32), np.float32), np.zeros_like(x)
    kernels.forward(launch, Memory(), walk, x, one.weight, one.bias, np.float32(1), mean, None, invvar, grads)
    kernels.gradients(launch, Memory(), walk, dy, x, mean, invvar, one.weight, True, grads, None, None)
    assert [name for name, _ in found] == ["family_column_forward", "family_column_backward"]
    for arrays, slots, (_, metrics) in zip((1, 2), rows, found, strict=True):
        held = arrays * (slots // arrays) * plan.parts * plan.down * x.shape[2] * x.itemsize
        assert metrics[COPIED] == (2 * arrays * x.nbytes - held) // SECTOR
        assert metrics[STORED] >= x.nbytes // SECTOR


@pytest.mark.parametrize(
    ("sets", "dtype", "across", "grid"),
    [
        (Sets(1, 8 * 224 * 224, 64, 1, 1), "float32", 16, (132, 1)),
        (Sets(1, 64 * 14 * 14, 1024, 1, 1), "float32", 32, (16, 8)),
        (Sets(1, 32 * 56 * 56, 256, 1, 1), "float32", 32, (66, 2)),
        (Sets(1, 32 * 56 * 56, 256, 1, 1), "bfloat16", 16, (66, 2)),  # fewer pieces for each block to merge
        (Sets(1, 32 * 56 * 56, 96, 1, 1), "float32", 8, (44, 3)),  # so that all lanes have channels
    ],
    ids=str,
)
def test_large_ones_are_dealt_to_nearly_all_multiprocessors(sets, dtype, across, grid):
    like = np.empty(0, DTYPES[dtype])
    plan = together.plan_for(sets, 16 // like.itemsize, like)
    assert (plan.across, (plan.parts, plan.stacks)) == (across, grid)


@pytest.mark.parametrize(
    ("sets", "dtype", "width", "why"),
    [
        (Sets(2, 8 * 224 * 224, 64, 1, 1), "float32", 4, "instances"),
        (Sets(1, 8 * 224 * 224, 8, 8, 1), "float32", 4, "groups"),
        (Sets(1, 8 * 224 * 224, 62, 1, 1), "float32", 2, "narrow vectors"),
        (Sets(1, 8 * 224 * 224, 64, 1, 1), "float64", 2, "float64"),
        (Sets(1, 8 * 28 * 28, 64, 1, 1), "float32", 4, "few rows"),
        (Sets(1, 8 * 28 * 28, 65536, 1, 1), "float32", 4, "more channels than blocks"),
        (Sets(1, 8 * 224 * 224, 10240, 1, 1), "float32", 4, "blocks left over"),
    ],
    ids=str,
)
def test_others_are_three_kernels(sets, dtype, width, why):
    assert together.plan_for(sets, width, np.empty(0, DTYPES[dtype])) is None


def test_older_gpus_and_a_switch_take_three_kernels(monkeypatch):
    sets, like = Sets(1, 8 * 224 * 224, 64, 1, 1), np.empty(0, np.float32)
    monkeypatch.setattr(together, "compute_capability", lambda array: (8, 0))
    assert together.plan_for(sets, 4, like) is None
    monkeypatch.undo()
    assert together.plan_for(sets, 4, like) is not None
    monkeypatch.setattr(together, "TOGETHER", False)
    assert together.plan_for(sets, 4, like) is None


@pytest.mark.skipif(not gpu_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("shape", [(8, 64, 56, 56), (64, 1024, 14, 14)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_gpu_s_are_within_bounds_and_those_of_torch(shape, dtype):
    one = example("batch", shape, dtype, "float32", last=True, offset=1.0)
    with using("gpu"):
        forward = one.forward()
        results = *forward, *one.backward(*forward[1:])
    some = slice(3, None, shape[1] // 8)  # of the channels, each of which is a norm of its own
    x, dy = one.x[:, some], one.grad_output[:, some]
    part = replace(one, x=x, grad_output=dy, weight=one.weight[some], bias=one.bias[some])
    of_part = [result[:, some] if result.ndim > 1 else result[some] for result in results]
    part.hold(tuple(of_part), one.arithmetic)
    x, dy = (torch.from_numpy(array.astype(np.float32)).cuda() for array in (one.x, one.grad_output))
    weight, bias = (torch.from_numpy(array).cuda().requires_grad_() for array in (one.weight, one.bias))
    x = x.to(getattr(torch, dtype)).requires_grad_()
    output = torch.nn.functional.batch_norm(x, None, None, weight, bias, training=True, eps=one.eps)
    output.backward(dy.to(x.dtype))
    close = {"float32": 1e-3, "bfloat16": 0.05}[dtype]
    for got, want in zip((results[0], *results[3:]), (output, x.grad, weight.grad, bias.grad), strict=True):
        want = want.detach().float().cpu().numpy()
        np.testing.assert_allclose(got.astype(np.float32), want, rtol=close, atol=close * abs(want).max())
