"""LayerNorm -> linear with one array kept: beside PyTorch's two layers, in values and in bytes."""

import numpy as np
import pytest
import torch

from normlab import oracle
from normlab.engine import gpu_available
from normlab.norm_linear import layer_norm_linear_backward, layer_norm_linear_forward

M, K, N = 18, 24, 12
STEP = "coalesced"
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not gpu_available(), reason="needs a GPU"))]


def problem(device="cpu"):
    """x, gamma, beta, weight and grad_output, float32."""
    generator = torch.Generator().manual_seed(0)
    x, weight, grad = (torch.randn(shape, generator=generator) for shape in ((M, K), (N, K), (M, N)))
    gamma, beta = torch.rand(K, generator=generator) + 0.5, torch.randn(K, generator=generator)
    return [tensor.to(device) for tensor in (x + 3, gamma, beta, weight, grad)]


def by_torch(x, gamma, beta, weight, grad, dtype):
    """PyTorch's output, its gradients, and the bytes that its two layers keep beside the parameters."""
    x, gamma, beta, weight = (t.to(dtype).requires_grad_() for t in (x, gamma, beta, weight))
    kept = {}

    def pack(tensor):
        if not any(tensor.data_ptr() == parameter.data_ptr() for parameter in (gamma, beta, weight)):
            kept[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        normalised = torch.nn.functional.layer_norm(x, (K,), gamma, beta)
        output = torch.nn.functional.linear(normalised, weight)
    output.backward(grad.to(dtype))
    return [t.detach() for t in (output, x.grad, gamma.grad, beta.grad, weight.grad)], sum(kept.values())


@pytest.mark.parametrize("device", DEVICES)
def test_values_are_as_close_to_the_truth_as_pytorch_s_two_layers(device):
    x, gamma, beta, weight, grad = given = problem(device)
    output, kept = layer_norm_linear_forward(x, gamma, beta, weight, step=STEP)
    ours = output, *layer_norm_linear_backward(grad, kept, gamma, beta, weight, step=STEP)
    truth, _ = by_torch(*given, torch.float64)
    theirs, _ = by_torch(*given, torch.float32)
    for what, mine, other, want in zip(("output", "x", "gamma", "beta", "weight"), ours, theirs, truth, strict=True):
        assert mine.shape == want.shape, what
        errors = [float((got.double() - want).norm() / want.norm()) for got in (mine, other)]
        assert errors[0] <= max(4 * errors[1], 2.0**-23), f"{what}: {errors}"


def test_each_product_is_within_its_bound_given_what_it_multiplies():
    x, gamma, beta, weight, grad = problem()
    output, kept = layer_norm_linear_forward(x, gamma, beta, weight, step=STEP)
    found = layer_norm_linear_backward(grad, kept, gamma, beta, weight, step=STEP)
    for got, left, right in ((output, kept.normalised, weight.T), (found.weight, grad.T, kept.normalised)):
        oracle.assert_within(got, oracle.product(left, right), oracle.product_bound(left, right), "product")


def test_half_of_what_pytorch_keeps_is_kept():
    given = problem()
    _, kept = layer_norm_linear_forward(*given[:4], step=STEP)
    _, theirs = by_torch(*given, torch.float32)
    ours = sum(tensor.untyped_storage().nbytes() for tensor in kept)
    assert ours == 4 * (M * K + M)
    assert theirs == 4 * (2 * M * K + 2 * M)  # input, output, mean and reciprocal deviation


def test_numpy_arrays_come_back_as_such():
    x, gamma, beta, weight, grad = (tensor.numpy() for tensor in problem())
    output, kept = layer_norm_linear_forward(x, gamma, beta, weight, step=STEP)
    found = layer_norm_linear_backward(grad, kept, gamma, beta, weight, step=STEP)
    assert all(isinstance(array, np.ndarray) for array in (output, *kept, *found))
    with pytest.raises(ValueError, match=r"a and b shapes cannot be multiplied \(18x24 and 12x24\)"):
        layer_norm_linear_forward(x, gamma, beta, weight.T)
