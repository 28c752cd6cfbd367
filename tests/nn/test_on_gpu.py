"""CUDA tensors: the kernels under autograd, in CUDA graphs, on side streams and on every GPU."""

import copy
import time

import pytest
import torch
from draws import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from nn.decoder_layers import GemmaLayer, LlamaLayer, PreLayerNormLayer
from nn.norms import MODES, array, hold_to_bounds, tensor

from normlab import layer_norm_forward, nn
from normlab.host import arrays, norms, replay

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


def saves_as_much_as_the_input(norm, x):
    """Assert that the gradients are those of the saved input; return how many columns were kept."""
    x = x.detach().to(norm.weight.dtype).requires_grad_()
    grad = torch.randn_like(x)
    output = norm(x)
    columns = output.grad_fn.saved_tensors[4]
    got = torch.autograd.grad(output, (x, *norm.parameters()), grad)
    saving = copy.deepcopy(norm)
    saving.memory_efficient = False
    want = torch.autograd.grad(saving(x), (x, *saving.parameters()), grad)
    for one, other in zip(got, want, strict=True):
        tolerance = 40 * torch.finfo(one.dtype).eps * other.abs().max().item()
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance)
    return 0 if columns is None else len(columns)


def queued_while_the_gpu_sleeps(call):
    """Call something that must not wait for the GPU; assert that all was queued while the GPU slept."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(500_000_000)
        start = time.perf_counter()
        call()
        queued = time.perf_counter() - start
    finally:
        torch.cuda.set_sync_debug_mode("default")
    start = time.perf_counter()
    torch.cuda.synchronize()
    assert queued < time.perf_counter() - start


def test_exact_waits_for_the_gpu_in_the_first_forward_after_a_step_only():
    norms = [module(nn.FusedLayerNorm, "exact"), module(nn.FusedRMSNorm, "exact")]
    optimizer = torch.optim.SGD([one for norm in norms for one in norm.parameters()], lr=0.0)
    x = torch.randn(64, 256, device="cuda", requires_grad=True)

    def train():
        for norm in norms:
            norm(x).sum().backward()

    for _ in range(3):
        train()
        optimizer.step()
    norms[0](x)  # waits, for both
    train()
    queued_while_the_gpu_sleeps(train)


DEVICES = ["cuda:0", *(["cuda:1"] if torch.cuda.device_count() > 1 else [])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_columns_that_a_fused_step_brings_to_risk_are_kept_in_the_next_forward(optimizer, device):
    """Fused optimizers do not raise version counters."""
    kinds = [(kind, dtype) for kind in NORMS for dtype in (torch.float32, torch.bfloat16)]
    norms = [module(kind, "exact", dtype=dtype, device=device) for kind, dtype in kinds]
    parameters = [parameter for norm in norms for parameter in norm.parameters()]
    step = optimizer(parameters, lr=0.0, fused=True)
    x = torch.randn(64, 256, device=device)
    for _ in range(2):
        for norm in norms:
            assert saves_as_much_as_the_input(norm, x) == 5
    for number, norm in enumerate(norms):
        for parameter in norm.parameters():
            parameter.grad = torch.zeros_like(parameter)
        norm.weight.data[: 10 * number + 10] = 0  # which no counter shows, as the step's own writes
    step.step()
    assert [saves_as_much_as_the_input(norm, x) for norm in norms] == [10, 20, 30, 40]


def test_a_step_on_a_side_stream_is_counted_where_the_forward_waits_for_it():
    norm = module(nn.FusedLayerNorm, "exact")
    optimizer = torch.optim.SGD(norm.parameters(), lr=1.0, fused=True)
    x = torch.randn(64, 256, device="cuda")
    assert saves_as_much_as_the_input(norm, x) == 5
    for parameter in norm.parameters():
        parameter.grad = torch.zeros_like(parameter)
    norm.weight.grad[5:9] = norm.weight.detach()[5:9]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        optimizer.step()
        assert saves_as_much_as_the_input(norm, x) == 9


def test_a_graph_of_a_whole_step_lists_its_columns_in_each_replay_and_tells_what_it_lost():
    norm = module(nn.FusedRMSNorm, "exact")
    x, grad = torch.randn(64, 256, device="cuda"), torch.randn(64, 256, device="cuda")
    scale = torch.ones(256, device="cuda")

    def step():
        output = norm(x)
        (found,) = torch.autograd.grad(output, norm.weight, grad)
        with torch.no_grad():
            norm.weight.mul_(scale)
        return found

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    for columns in (8, 16):  # there are 16 slots: twice the 5 at the capture, in eights
        scale[:columns] = 0
        graph.replay()  # the change
        graph.replay()  # its forward
        want = (x.double() * torch.rsqrt(x.double().square().mean(1, keepdim=True) + norm.eps) * grad).sum(0)
        torch.testing.assert_close(found.double(), want, rtol=1e-4, atol=1e-4)
    scale[:20] = 0
    graph.replay()
    graph.replay()
    torch.cuda.synchronize()
    with pytest.warns(RuntimeWarning, match="a CUDA graph 4 columns at risk found no slot"):
        norm(x.requires_grad_())
    assert saves_as_much_as_the_input(norm, x) == 20


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
    key, pointers = norms.forward_signature(x, 256, None, None, 1e-5, False)
    recording = replay.find(key)
    assert recording._device() == recording._index
    assert all(make.func is arrays.quick_memory()[1] for make in recording._here)
    for one, other in zip(recording(pointers), want, strict=True):
        assert torch.equal(one, other)
        assert (one.device, one.dtype, one.stride()) == (other.device, other.dtype, other.stride())


def fused_layer(kind, mode) -> tuple[torch.nn.Module, torch.nn.Module]:
    """A layer with a gamma of 0 in its norms where that does no harm, and the same fused."""
    torch.manual_seed(0)
    old = torch.nn.Sequential(kind(256), kind(256)).cuda()
    with torch.no_grad():
        for name, parameter in old.named_parameters():
            if "norm" in name or "ln_" in name:
                parameter.uniform_(0.5, 1.5)
                if mode != True and name.endswith("weight"):  # noqa: E712  "exact" is true, too
                    parameter[3] = -1 if kind is GemmaLayer else 0
    new = copy.deepcopy(old)
    assert len(nn.replace_norms(new, mode, fuse_residual=True).fused) == 2
    return old, new


def gradients_of(layer, x, dy):
    return torch.autograd.grad(layer(x), (x, *layer.parameters()), dy)


@pytest.mark.parametrize("memory_efficient", MODES)
@pytest.mark.parametrize("kind", [LlamaLayer, GemmaLayer, PreLayerNormLayer], ids=lambda kind: kind.__name__)
def test_fused_layers_have_the_gradients_of_the_layers_before(kind, memory_efficient):
    old, new = fused_layer(kind, memory_efficient)
    x, dy = (torch.randn(4, 16, 256, device="cuda").requires_grad_() for _ in range(2))
    for _ in range(2):  # the second of "exact" finds the columns counted
        for one, other in zip(gradients_of(new, x, dy), gradients_of(old, x, dy), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
    halves = [copy.deepcopy(one).bfloat16() for one in (new, old)]
    x, dy = (one.detach().bfloat16().requires_grad_() for one in (x, dy))
    for one, other in zip(*[gradients_of(layer, x, dy) for layer in halves], strict=True):
        difference = (one.double() - other.double()).norm() / other.double().norm()
        assert difference < 3e-2


@pytest.mark.parametrize("memory_efficient", MODES)
def test_fused_layers_compile_and_are_captured_by_a_cuda_graph(memory_efficient):
    old, new = fused_layer(LlamaLayer, memory_efficient)
    x, dy = (torch.randn(4, 16, 256, device="cuda").requires_grad_() for _ in range(2))
    want = gradients_of(old, x, dy)
    compiled = torch.compile(new, fullgraph=True)
    gradients_of(new, x, dy)
    graphed = torch.cuda.make_graphed_callables(copy.deepcopy(new), (x.detach().clone().requires_grad_(),))
    for call in (compiled, graphed):
        for one, other in zip(gradients_of(call, x, dy), want, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
