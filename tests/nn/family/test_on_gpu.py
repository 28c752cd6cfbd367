"""CUDA tensors: the kernels under autograd, in CUDA graphs and in compiled code; running statistics on the GPU."""

import copy

import numpy as np
import pytest
import torch
from family.examples import NORMS, example
from nn.family.faces import hold_to_bounds

from normlab import nn

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU and a torch built for CUDA")


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtypes", [("float32", None), ("float64", None), ("bfloat16", "float32"), ("float16", None)])
@pytest.mark.parametrize("norm", NORMS)
def test_within_the_bounds(norm, dtypes, last):
    one = example(norm, (5, 6, 17, 9), *dtypes, groups=2, last=last, offset=2.0)
    hold_to_bounds(one, one.arithmetic, device="cuda")
    running = np.float32([0.5, -1, 0, 2, 1, 3]), np.float32([1, 0.25, 3, 1e-3, 2, 1])
    if norm != "group" and dtypes[0] != "float64":  # whose statistics are float64, too
        hold_to_bounds(one, one.arithmetic, running, device="cuda")


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("name", ["BatchNorm2d", "InstanceNorm2d"])
def test_running_statistics_in_training_and_in_evaluation_are_torch_s(name, momentum, layout):
    torch.manual_seed(0)
    options = {"momentum": momentum, "affine": True, "track_running_stats": True, "device": "cuda"}
    mine, theirs = (getattr(library, name)(6, **options) for library in (nn, torch.nn))
    for _ in range(4):  # the first call is recorded, the others are replayed
        x = (torch.randn(5, 6, 8, 9, device="cuda") + 2).to(memory_format=layout)
        torch.testing.assert_close(mine(x), theirs(x), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(mine.state_dict(), theirs.state_dict(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(mine.eval()(x), theirs.eval()(x), rtol=1e-4, atol=1e-4)


def test_a_cuda_graph_updates_running_statistics_whenever_it_is_replayed():
    norm, eager = (nn.BatchNorm2d(6, device="cuda") for _ in range(2))
    x = torch.randn(5, 6, 8, 8, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        copy.deepcopy(norm)(x)  # kernels are compiled before the capture
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = norm(x)
    for _ in range(3):
        x.normal_()
        graph.replay()
        want = eager(x)
        torch.testing.assert_close(output, want, rtol=0, atol=0)
        torch.testing.assert_close(norm.running_var, eager.running_var, rtol=0, atol=0)


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(6), nn.GroupNorm(2, 6)], ids=lambda norm: type(norm).__name__)
def test_compiled_with_the_kernels_inside(norm):
    norm = copy.deepcopy(norm).cuda()
    twin = copy.deepcopy(norm)
    compiled = torch.compile(twin, fullgraph=True)
    x = torch.randn(4, 6, 8, 8, device="cuda", requires_grad=True)
    dy = torch.randn_like(x)
    got = torch.autograd.grad(compiled(x), (x, *twin.parameters()), dy)
    want = torch.autograd.grad(norm(x), (x, *norm.parameters()), dy)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(list(twin.buffers()), list(norm.buffers()))
