"""The family on a real GPU: tensors and device arrays stay there and give the bits that NumPy arrays give."""

import numpy as np
import pytest
import torch
from family.examples import NORMS, example

from normlab.engine import gpu_available, using
from normlab.host import family

pytestmark = pytest.mark.skipif(not gpu_available(), reason="needs an NVIDIA GPU")


def results_of(norm, x, dy, weight, bias, running):
    """Forward and backward, the running statistics among them."""
    if norm == "group":
        forward = family.group_norm(x, 2, weight, bias)
        return *forward, *family.group_norm_backward(dy, x, *forward[1:], 2, weight, bias)
    forward = getattr(family, f"{norm}_norm")(x, *running, weight, bias)
    backward = getattr(family, f"{norm}_norm_backward")(dy, x, *forward[1:], weight, bias)
    return *forward, *backward, *running


def numpy_results(norm, one):
    with using("gpu"):
        running = np.zeros(one.x.shape[1], np.float32), np.ones(one.x.shape[1], np.float32)
        return results_of(norm, one.x, one.grad_output, one.weight, one.bias, running)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("norm", NORMS)
def test_tensors_stay_on_the_gpu_as_they_lie(norm, last):
    for seed in range(3):  # the first call is recorded, the others are replayed
        one = example(norm, (4, 6, 8, 8), groups=2, last=last, seed=seed)
        x, dy, weight, bias = (
            torch.from_numpy(array).cuda() for array in (one.x, one.grad_output, one.weight, one.bias)
        )
        running = torch.zeros(6, device="cuda"), torch.ones(6, device="cuda")
        results = results_of(norm, x, dy, weight, bias, running)
        layout = torch.channels_last if last else torch.contiguous_format
        assert results[0].is_cuda
        assert results[0].is_contiguous(memory_format=layout)
        for got, want in zip(results, numpy_results(norm, one), strict=True):
            np.testing.assert_array_equal(got.cpu().numpy(), want)


@pytest.mark.parametrize("norm", NORMS)
def test_device_arrays_stay_on_the_gpu(norm):
    from numba import cuda

    one = example(norm, (4, 6, 8, 8), groups=2)
    given = [cuda.to_device(array) for array in (one.x, one.grad_output, one.weight, one.bias)]
    running = cuda.to_device(np.zeros(6, np.float32)), cuda.to_device(np.ones(6, np.float32))
    for got, want in zip(results_of(norm, *given, running), numpy_results(norm, one), strict=True):
        np.testing.assert_array_equal(got.copy_to_host(), want)


def test_a_cuda_graph_captures_batch_norm():
    x, dy = (torch.randn(4, 6, 8, 8, device="cuda") for _ in range(2))
    want = results_of("batch", x, dy, None, None, (None, None))[:4]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = results_of("batch", x, dy, None, None, (None, None))[:4]
    graph.replay()
    for one, other in zip(got, want, strict=True):
        assert torch.equal(one, other)
