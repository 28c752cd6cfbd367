"""Batch norm of channels last in one kernel a pass: within bounds, nothing found, no row in a ring read again."""

from math import prod

import devices
import numpy as np
import pytest
import torch
from draws import DTYPES
from family.examples import FUSED, channels_last, example, few_blocks
from family.test_on_gpu import numpy_results, results_of
from family.test_traffic import SECTOR, STORED
from nn.family.faces import like_memory_of
from nn.norms import array, tensor
from watching import Memory, launcher

from normlab.engine import compute_capability, gpu_available, using
from normlab.host import family
from normlab.kernels import family as kernels
from normlab.kernels.family import fused
from normlab.kernels.family.sets import Sets
from normlab.sim import trace

COPIED = "sm__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts.sum"

# (N, C, *spatial): ten vectors, 34 in two stacks (in 16 bits half as many, in one), a matrix, few vectors
SHAPES = [(2, 40, 9, 8), (2, 136, 53), (301, 16), (1, 8, 2, 3, 101)]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_all_is_within_bounds_and_the_same_in_every_schedule(monkeypatch, shape, dtype):
    few_blocks(monkeypatch)
    one = example("batch", shape, dtype, "float32" if dtype == "float16" else dtype, last=len(shape) > 2, offset=3.0)
    assert one.walked()[0].fused is not None
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
        assert case.walked()[0].fused is not None
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
        assert (one.walked()[0].fused is not None) == few
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
    walk, x, dy = one.walked()
    assert walk.fused is not None
    memory = Memory()
    launch = launcher(memory, schedule)
    mean, variance, invvar = (memory.empty((shape[1],), np.float32) for _ in range(3))
    output, grad_input = (memory.empty(x.shape, x.dtype) for _ in range(2))
    grads = [memory.empty((shape[1],), DTYPES[dtype]) for _ in range(2)]
    statistics = np.float32(1e-5), mean, variance, invvar
    kernels.forward(launch, memory, walk, kernels.Outputs(walk.sets, x, one.weight, one.bias, *statistics, output))
    kernels.gradients(
        launch, memory, walk, kernels.Gradients(walk.sets, dy, x, mean, invvar, one.weight, True, grad_input, *grads)
    )
    assert not memory.empties


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_pass_is_one_kernel_that_reads_no_row_again_that_its_ring_holds(monkeypatch, dtype):
    few_blocks(monkeypatch)
    x = channels_last(np.zeros((2, 32, 16, 16), DTYPES[dtype]))
    one = example("batch", x.shape, dtype, last=True)
    walk, x, dy = one.walked()
    plan, found = walk.fused, []

    def launch(kernel, grid, block, *operands, shared_bytes):
        found.append((kernel.py_func.__name__, trace(kernel)[grid, block, 0, shared_bytes](*operands).metrics))
        rows.append(shared_bytes // 1024)  # of 64 threads and 16 bytes

    rows = []
    mean, invvar, grads = *np.zeros((2, 32), np.float32), np.zeros_like(x)
    kernels.forward(
        launch,
        Memory(),
        walk,
        kernels.Outputs(walk.sets, x, one.weight, one.bias, np.float32(1), mean, None, invvar, grads),
    )
    kernels.gradients(
        launch, Memory(), walk, kernels.Gradients(walk.sets, dy, x, mean, invvar, one.weight, True, grads, None, None)
    )
    assert [name for name, _ in found] == ["family_column_forward", "family_column_backward"]
    for arrays, slots, (_, metrics) in zip((1, 2), rows, found, strict=True):
        held = arrays * (slots // arrays) * plan.row_blocks * plan.down * x.shape[2] * x.itemsize
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
    plan = fused.plan_for(sets, 16 // like.itemsize, like.itemsize, devices.of((9, 0)))
    assert (plan.across, (plan.row_blocks, plan.stacks)) == (across, grid)


def test_what_is_run_on_hardware_has_plans_and_its_longest_goes_round_the_ring():
    plans = []
    for shape, dtype in FUSED:
        like = np.empty(0, DTYPES[dtype])
        sets = Sets(1, prod(shape) // shape[1], shape[1], 1, 1)
        plans.append(fused.plan_for(sets, 16 // like.itemsize, like.itemsize, devices.of((9, 0))))
    assert None not in plans
    assert [(plan.across, plan.row_blocks, plan.stacks) for plan in plans] == [
        (16, 132, 1), (8, 66, 2), (32, 66, 2), (8, 44, 3), (16, 132, 1), (8, 66, 2)
    ]  # fmt: skip
    assert [plan.turns * fused.THREADS * 16 > plan.shared_bytes for plan in plans] == [False] * 4 + [True] * 2


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
    assert fused.plan_for(sets, width, np.dtype(DTYPES[dtype]).itemsize, devices.of((9, 0))) is None


def test_older_gpus_and_a_switch_take_three_kernels(monkeypatch):
    sets = Sets(1, 8 * 224 * 224, 64, 1, 1)
    assert fused.plan_for(sets, 4, 4, devices.of((8, 0))) is None
    assert fused.plan_for(sets, 4, 4, devices.of((9, 0))) is not None
    monkeypatch.setattr(fused, "FUSED", False)
    assert fused.plan_for(sets, 4, 4, devices.of((9, 0))) is None


# ---- on a GPU --------------------------------------------------------------------------------------------------------

ON_GPU = pytest.mark.skipif(
    not gpu_available() or compute_capability(np.empty(0)) < fused.NEEDED,
    reason="needs an NVIDIA GPU of compute capability 9.0",
)


def on_gpu(shape, dtype, seed=0, device="cuda"):
    """An example, and its x, dy, weight and bias as tensors; its batch norm is one kernel a pass."""
    one = example("batch", shape, dtype, "float32", last=len(shape) > 2, offset=1.0, seed=seed)
    assert one.walked()[0].fused is not None
    x, dy = (like_memory_of(tensor(values).to(device), values) for values in (one.x, one.grad_output))
    return one, (x, dy, tensor(one.weight).to(device), tensor(one.bias).to(device))


def passes(x, dy, weight, bias, running=None):
    """All results of both passes, the running statistics among them, which begin anew where none are given."""
    if running is None:
        running = torch.zeros_like(weight), torch.ones_like(weight)
    return results_of("batch", x, dy, weight, bias, running)


def assert_same_bits(results, others):
    for one, other in zip(results, others, strict=True):
        assert torch.equal(one, other)


@ON_GPU
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [*FUSED, ((8, 64, 56, 56), "float32"), ((8, 128, 56, 56), "bfloat16"), ((64, 1024, 14, 14), "float16")],
    ids=str,
)
def test_a_gpu_s_are_within_bounds_and_those_of_torch(shape, dtype):
    one, (x, dy, weight, bias) = on_gpu(shape, dtype)
    with using("gpu"):
        results = one.examine_some()
    x, weight, bias = (leaf.requires_grad_() for leaf in (x, weight, bias))
    output = torch.nn.functional.batch_norm(x, None, None, weight, bias, training=True, eps=one.eps)
    output.backward(dy)
    close = {"float32": 1e-3, "float16": 0.01, "bfloat16": 0.05}[dtype]
    for got, want in zip((results[0], *results[3:]), (output, x.grad, weight.grad, bias.grad), strict=True):
        want = want.detach().float().cpu().numpy()
        np.testing.assert_allclose(got.astype(np.float32), want, rtol=close, atol=close * abs(want).max())


@ON_GPU
@pytest.mark.parametrize(("shape", "dtype"), FUSED, ids=str)
def test_tensors_have_the_bits_of_numpy_arrays_in_call_after_call(shape, dtype):
    for seed in (0, 1, 1):  # the first call is recorded, the others are replayed
        one, tensors = on_gpu(shape, dtype, seed)
        for got, want in zip(passes(*tensors), numpy_results("batch", one), strict=True):
            np.testing.assert_array_equal(array(got.cpu()), want)


@ON_GPU
@pytest.mark.parametrize(("shape", "dtype"), FUSED, ids=str)
def test_a_cuda_graph_gives_the_bits_of_calls_whenever_it_is_replayed(shape, dtype):
    _, tensors = on_gpu(shape, dtype)
    running = torch.zeros_like(tensors[2]), torch.ones_like(tensors[2])
    twins = [statistics.clone() for statistics in running]
    passes(*tensors)  # kernels are compiled before the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = passes(*tensors, running)
    for turn in range(4):
        if turn != 2:  # the same contents twice
            for given in tensors:
                given.normal_()
        graph.replay()
        assert_same_bits(results, passes(*tensors, twins))


@ON_GPU
def test_both_passes_wait_for_what_their_stream_has_to_do():
    _, tensors = on_gpu((2, 64, 240, 240), "float32")
    want, stream = passes(*tensors), torch.cuda.Stream()
    for _ in range(3):
        late = [torch.zeros_like(given) for given in tensors]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)  # what comes after it must wait for it
            for given, values in zip(late, tensors, strict=True):
                given.copy_(values)
            results = passes(*late)
        stream.synchronize()
        assert_same_bits(results, want)


@ON_GPU
def test_kernels_of_two_streams_that_each_need_the_whole_gpu_do_not_wait_for_each_other():
    _, tensors = on_gpu((2, 64, 240, 240), "float32")
    want, streams = passes(*tensors), [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    results = []
    for stream in 5 * streams:
        with torch.cuda.stream(stream):
            results.append(passes(*tensors))
    torch.cuda.synchronize()
    for found in results:
        assert_same_bits(found, want)


@ON_GPU
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize(("shape", "dtype"), FUSED, ids=str)
def test_every_gpu_of_one_process_gives_the_same_bits(shape, dtype):
    results = []
    for device in 2 * ("cuda:0", "cuda:1"):
        _, tensors = on_gpu(shape, dtype, device=device)
        results.append([result.cpu() for result in passes(*tensors)])
    for others in results[1:]:
        assert_same_bits(results[0], others)
