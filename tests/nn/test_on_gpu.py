"""CUDA tensors: the kernels under autograd, in CUDA graphs, on side streams and on every GPU."""

import copy
import time
import warnings

import pytest
import torch
from draws import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from nn.norms import MODES, array, hold_to_bounds, tensor

from normlab import arrays, layer_norm_forward, nn, ops, replay
from normlab.nn import room

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU and a torch built for CUDA")
NORMS = [nn.FusedLayerNorm, nn.FusedRMSNorm]


def module(kind, memory_efficient, size=256, dtype=torch.float32, device="cuda") -> torch.nn.Module:
    """A norm with random parameters, some of its weights 0 where that does no harm."""
    torch.manual_seed(0)
    norm = kind(size, memory_efficient=memory_efficient)
    for parameter in norm.parameters():
        torch.nn.init.uniform_(parameter, 0.5, 1.5)
    if memory_efficient == "exact":
        with torch.no_grad():
            norm.weight[:5] = 0
    return norm.to(device, dtype)


@settings(max_examples=40)
@given(case=cases(rows=(0, 1, 5, 300)), memory_efficient=st.sampled_from(MODES))
def test_kernels_are_within_the_bounds(case, memory_efficient):
    leaves = [tensor(values) for values in (case.x, case.weight, case.bias)]
    leaves = [None if leaf is None else leaf.cuda().requires_grad_() for leaf in leaves]
    x, weight, bias = leaves
    if case.rms:
        output = nn.rms_norm(x, case.n2, weight, case.eps, memory_efficient)
    else:
        output = nn.layer_norm(x, case.n2, weight, bias, case.eps, memory_efficient)
    output.backward(tensor(case.grad_output).cuda())
    gradients = tuple(None if leaf is None else array(leaf.grad.cpu()) for leaf in leaves)
    hold_to_bounds(case, memory_efficient, array(output.detach().cpu()), gradients)


@pytest.mark.parametrize("memory_efficient", MODES)
@pytest.mark.parametrize("kind", NORMS)
def test_a_cuda_graph_of_forward_and_backward_replays_on_new_values(kind, memory_efficient):
    norm = module(kind, memory_efficient)
    eager = copy.deepcopy(norm)
    sample = torch.randn(64, 256, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(norm, (sample,))
    for _ in range(3):
        x = torch.randn(64, 256, device="cuda", requires_grad=True)
        dy = torch.randn(64, 256, device="cuda")
        got = torch.autograd.grad(graphed(x), (x, *norm.parameters()), dy)
        want = torch.autograd.grad(eager(x), (x, *eager.parameters()), dy)
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("memory_efficient", MODES)
def test_work_goes_to_the_current_stream(memory_efficient):
    norm = module(nn.FusedLayerNorm, memory_efficient)
    x, stream = torch.zeros(64, 256, device="cuda", requires_grad=True), torch.cuda.Stream()
    want = norm(torch.ones_like(x).cumsum(1)).detach()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # what comes after it must wait for it
        with torch.no_grad():
            x += torch.ones_like(x).cumsum(1)
        output = norm(x)
        output.sum().backward()
    stream.synchronize()
    torch.testing.assert_close(output.detach(), want)


def test_exact_waits_for_the_gpu_in_its_first_forward_only():
    norm, x = module(nn.FusedLayerNorm, "exact"), torch.randn(64, 256, device="cuda", requires_grad=True)
    for _ in range(3):
        norm(x).sum().backward()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(500_000_000)
        start = time.perf_counter()
        norm(x).sum().backward()
        queued = time.perf_counter() - start
    finally:
        torch.cuda.set_sync_debug_mode("default")
    start = time.perf_counter()
    torch.cuda.synchronize()
    assert queued < time.perf_counter() - start  # all was queued while the GPU still slept
    (capacity,) = {made.capacity for made in room._rooms.values() if not made.is_gone()}
    assert capacity == 5  # as many as were counted, since nothing has changed the parameters


@pytest.mark.parametrize("device", ["cuda:0", *(["cuda:1"] if torch.cuda.device_count() > 1 else [])])
def test_behind_a_step_one_launch_finds_the_columns_of_all_norms(device, monkeypatch):
    """Columns that a step brings to risk have room right behind it; and forwards need not ask while there are none."""
    asked, real = [], room.asking
    monkeypatch.setattr(room, "asking", lambda *given: (lambda ask: lambda: (asked.append(1), ask())[1])(real(*given)))
    kinds = [(kind, dtype) for kind in NORMS for dtype in (torch.float32, torch.bfloat16)]
    norms = [kind(256, memory_efficient="exact").to(device, dtype) for kind, dtype in kinds]
    optimizer = torch.optim.SGD([parameter for norm in norms for parameter in norm.parameters()], lr=2.0**-20)
    x = torch.randn(64, 256, device=device)

    def train_all():
        outputs = [norm(x.to(norm.weight.dtype)) for norm in norms]
        torch.autograd.backward(outputs, [torch.randn_like(output) for output in outputs])
        optimizer.step()
        torch.cuda.synchronize(device)

    for _ in range(4):
        train_all()
    asked.clear()
    for _ in range(3):
        train_all()
    assert not asked
    rooms = [room._steady[id(norm.weight)].room for norm in norms]
    assert all(one.numbers[2] == rooms[0].numbers[2] > 0 for one in rooms)
    with torch.no_grad():
        for number, norm in enumerate(norms):
            norm.weight.grad[: 10 * number] = norm.weight[: 10 * number] * 2.0**20
    optimizer.step()  # takes those weights to 0
    torch.cuda.synchronize(device)
    assert [one.numbers[0] % room.NEAR for one in rooms] == [0, 10, 20, 30]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for norm in norms:
            inputs = x.to(norm.weight.dtype).requires_grad_()
            dy = torch.randn_like(inputs)
            got = torch.autograd.grad(norm(inputs), (inputs, norm.weight), dy)
            norm.memory_efficient = False
            want = torch.autograd.grad(norm(inputs), (inputs, norm.weight), dy)
            for one, other in zip(got, want, strict=True):
                torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-1 if one.dtype == torch.bfloat16 else 1e-3)
    assert [one.capacity for one in rooms] == [0, 16, 24, 32]
    assert not asked


def test_steps_on_any_stream_are_surveyed():
    """The table of what to ask was made on another one, where the host did not wait for it."""
    norm = nn.FusedLayerNorm(256, memory_efficient="exact").cuda()
    optimizer = torch.optim.SGD(norm.parameters(), lr=2.0**-20)
    for _ in range(3):
        norm(torch.randn(64, 256, device="cuda")).square().sum().backward()
    own = room._steady[id(norm.weight)].room
    for columns, stream in enumerate([torch.cuda.current_stream(), *(torch.cuda.Stream() for _ in range(4))]):
        stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream):
            norm.weight.grad.zero_()
            norm.weight.grad[columns] = norm.weight[columns] * 2.0**20
            optimizer.step()
        torch.cuda.synchronize()
        assert own.numbers[0] % room.NEAR == columns + 1


def test_a_forward_before_the_answer_waits_for_nothing_and_asks_itself():
    """Every kernel has run before: loading one waits for the GPU (CUDA loads it at its first launch)."""
    norm = nn.FusedRMSNorm(256, memory_efficient="exact").cuda()
    x, optimizer = torch.randn(64, 256, device="cuda"), torch.optim.SGD(norm.parameters(), lr=2.0**-20)
    for _ in range(4):
        norm(x).sum().backward()
        norm.weight.grad.copy_(norm.weight * 2.0)
        optimizer.step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(500_000_000)
        start = time.perf_counter()
        norm.weight.grad.copy_(norm.weight * 2.0**20)
        optimizer.step()
        output = norm(x)
        queued = time.perf_counter() - start
    finally:
        torch.cuda.set_sync_debug_mode("default")
    start = time.perf_counter()
    torch.cuda.synchronize()
    assert queued < time.perf_counter() - start
    with pytest.warns(RuntimeWarning, match="256 columns came to risk sooner"):
        norm(x)
    assert output.isfinite().all()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("memory_efficient", MODES)
def test_every_gpu_of_one_process(memory_efficient):
    results = []
    for device in ("cuda:0", "cuda:1"):
        norm = module(nn.FusedLayerNorm, memory_efficient, device=device)
        torch.manual_seed(1)
        x = torch.randn(64, 256).to(device).requires_grad_()
        norm(x).square().sum().backward()
        results.append([x.grad.cpu(), norm.weight.grad.cpu(), norm.bias.grad.cpu()])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("memory_efficient", MODES)
def test_compiled_with_the_kernels_inside(memory_efficient):
    norm = module(nn.FusedLayerNorm, memory_efficient)
    compiled = torch.compile(norm, fullgraph=True)
    x = torch.randn(64, 256, device="cuda", requires_grad=True)
    dy = torch.randn_like(x)
    got = torch.autograd.grad(compiled(x), (x, *norm.parameters()), dy)
    want = torch.autograd.grad(norm(x), (x, *norm.parameters()), dy)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("memory_efficient", MODES)
def test_saving_the_output_frees_the_input(memory_efficient):
    norm = module(nn.FusedRMSNorm, memory_efficient, size=4096, dtype=torch.bfloat16)
    norm(torch.randn(8, 4096, device="cuda", dtype=torch.bfloat16))
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    output = norm(torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16, requires_grad=True) * 1)
    kept = torch.cuda.memory_allocated() - before - output.nbytes
    leaf = output.nbytes  # the drawn tensor itself, which its gradient's node keeps
    assert kept < leaf + 0.1 * output.nbytes if memory_efficient else kept > 1.9 * output.nbytes


def test_replays_allocate_by_what_this_torch_has_that_is_quick():
    x = torch.randn(64, 256, device="cuda")
    want = layer_norm_forward(x, 256)
    key, pointers = ops.forward_signature(x, 256, None, None, 1e-5, False)
    recording = replay.find(key)
    assert recording._device() == recording._index
    assert all(make.func is arrays.quick_memory()[1] for make in recording._here)
    for one, other in zip(recording(pointers), want, strict=True):
        assert torch.equal(one, other)
        assert (one.device, one.dtype, one.stride()) == (other.device, other.dtype, other.stride())
