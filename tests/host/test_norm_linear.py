"""LayerNorm -> linear with one array kept: beside PyTorch's two layers, in values and in bytes."""

import re
from functools import cache

import numpy as np
import pytest
import torch

from normlab import oracle
from normlab.engine import gpu_available
from normlab.host import arrays
from normlab.host.norm_linear import Kept, layer_norm_linear_backward, layer_norm_linear_forward
from normlab.kernels import LADDERS

M, K, N = 18, 24, 12
STEP = "coalesced"
SIZES = [((M, K, N), STEP), ((130, 24, 12), None)]  # None: the fastest step, here in more than one tile
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not gpu_available(), reason="needs a GPU"))]


def problem(device="cpu", size=(M, K, N)):
    """x, gamma, beta, weight and grad_output, float32."""
    generator = torch.Generator().manual_seed(0)
    m, k, n = size
    x, weight, grad = (torch.randn(shape, generator=generator) for shape in ((m, k), (n, k), (m, n)))
    gamma, beta = torch.rand(k, generator=generator) + 0.5, torch.randn(k, generator=generator)
    return [tensor.to(device) for tensor in (x + 3, gamma, beta, weight, grad)]


def by_torch(x, gamma, beta, weight, grad, dtype):
    """PyTorch's output, its gradients, and the bytes that its two layers keep beside the parameters."""
    given = [None if t is None else t.to(dtype).requires_grad_() for t in (x, gamma, beta, weight)]
    x, gamma, beta, weight = given
    kept = {}

    def pack(tensor):
        if not any(tensor.data_ptr() == parameter.data_ptr() for parameter in given[1:] if parameter is not None):
            kept[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        normalised = torch.nn.functional.layer_norm(x, x.shape[1:], gamma, beta)
        output = torch.nn.functional.linear(normalised, weight)
    output.backward(grad.to(dtype))
    return [output.detach(), *(None if t is None else t.grad for t in given)], sum(kept.values())


def by_us(given, step):
    """Our output, what is kept for the backward, and the gradients."""
    x, gamma, beta, weight, grad = given
    output, kept = layer_norm_linear_forward(x, gamma, beta, weight, step=step)
    return output, kept, layer_norm_linear_backward(grad, kept, gamma, beta, weight, step=step)


@cache
def simulated(size, step):
    """The same of a whole problem, for more than one test: 130 rows take seconds."""
    return by_us(problem(size=size), step)


def assert_as_close_as_torch(given, output, gradients):
    """Our output and gradients against the truth, no more than a few times as far off as PyTorch's two layers."""
    ours = output, *gradients
    truth, _ = by_torch(*given, torch.float64)
    theirs, _ = by_torch(*given, torch.float32)
    for what, mine, other, want in zip(("output", "x", "gamma", "beta", "weight"), ours, theirs, truth, strict=True):
        if want is None:
            assert mine is None, what
            continue
        assert mine.shape == want.shape, what
        errors = [float((got.double() - want).norm() / want.norm()) for got in (mine, other)]
        assert errors[0] <= max(4 * errors[1], 2.0**-23), f"{what}: {errors}"


@pytest.mark.parametrize(("size", "step"), SIZES)
@pytest.mark.parametrize("device", DEVICES)
def test_values_are_as_close_to_the_truth_as_pytorch_s_two_layers(device, size, step):
    given = problem(device, size)
    output, _, gradients = simulated(size, step) if device == "cpu" else by_us(given, step)
    assert_as_close_as_torch(given, output, gradients)


@pytest.mark.parametrize("device", DEVICES)
def test_channels_of_a_gamma_of_0_learn(device):
    """From the output alone nothing of them comes back."""
    given = problem(device)
    given[1][::5] = 0
    given[1][1] = 1e-7
    output, kept, gradients = by_us(given, STEP)
    assert_as_close_as_torch(given, output, gradients)
    assert kept.columns.tolist() == [0, 1, 5, 10, 15, 20]


@pytest.mark.parametrize(("size", "step"), SIZES)
def test_each_product_is_within_its_bound_given_what_it_multiplies(size, step):
    _, _, _, weight, grad = problem(size=size)
    output, kept, found = simulated(size, step)
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
    output, kept, found = by_us([tensor.numpy() for tensor in problem()], STEP)
    assert all(isinstance(array, np.ndarray) for array in (output, *kept, *found))


@pytest.mark.parametrize("absent", [("gamma",), ("beta",), ("gamma", "beta")])
def test_gamma_and_beta_may_be_absent_in_both_directions(absent):
    x, gamma, beta, weight, grad = problem()
    given = [x, None if "gamma" in absent else gamma, None if "beta" in absent else beta, weight, grad]
    output, _, gradients = by_us(given, STEP)
    assert_as_close_as_torch(given, output, gradients)


# ---- errors, before anything is launched ----------------------------------------------------------------------------

NO_ARRAY = "must be a NumPy array, a torch tensor or an array with __cuda_array_interface__, got"
DTYPE = "to be float32 (the one dtype of the SGEMM ladder), but got"
NAMES = ", ".join(step.name for step in LADDERS["sgemm"])
UNKNOWN = f"unknown step 'fast' of the sgemm ladder; known: {NAMES}"
BOTH = [
    ({"weight": np.zeros((K, N), np.float32)}, ValueError, f"Expected weight to be of shape [{K}, {K}] (a column for each of {{}}), but got [{K}, {N}]"),
    ({"weight": np.zeros(K, np.float32)}, ValueError, f"weight must be a matrix, got 1-D of shape [{K}]"),
    ({"weight": np.zeros((N, K))}, TypeError, f"Expected weight {DTYPE} float64"),
    ({"weight": None}, TypeError, f"weight {NO_ARRAY} builtins.NoneType"),
    ({"gamma": [1.0] * K}, TypeError, f"gamma {NO_ARRAY} builtins.list"),
    ({"gamma": np.ones(K, np.float16)}, TypeError, f"Expected gamma {DTYPE} float16"),
    ({"gamma": np.ones(N, np.float32)}, ValueError, f"Expected gamma to be of shape [{K}] (an element for each column of {{}}), but got [{N}]"),
    ({"beta": np.ones((1, K), np.float32)}, ValueError, f"Expected beta to be of shape [{K}] (an element for each column of {{}}), but got [1, {K}]"),
    ({"beta": np.ones(K, np.int32)}, TypeError, f"Expected beta {DTYPE} int32"),
    ({"beta": torch.ones(K, device="meta")}, ValueError, "all arrays must be on one device, but {} is on cpu and beta is on meta"),
    ({"eps": "1e-5"}, TypeError, "eps must be a real number, got '1e-5'"),
    ({"step": "fast"}, ValueError, UNKNOWN),
]  # fmt: skip
FORWARD = [
    ({"x": [[1.0]]}, TypeError, f"x {NO_ARRAY} builtins.list"),
    ({"x": np.array(1, np.float32)}, ValueError, "x must be a matrix, got 0-D of shape []"),
    ({"x": np.zeros((2, 3, K), np.float32)}, ValueError, f"x must be a matrix, got 3-D of shape [2, 3, {K}]"),
    ({"x": np.zeros((M, K))}, TypeError, f"Expected x {DTYPE} float64"),
    ({"x": np.zeros((M, 0), np.float32)}, ValueError, f"x must have at least one column, got shape [{M}, 0]"),
]  # fmt: skip
NORMALISED, INVVAR = np.zeros((M, K), np.float32), np.ones(M, np.float32)
BACKWARD = [
    ({"grad_output": [[1.0]]}, TypeError, f"grad_output {NO_ARRAY} builtins.list"),
    ({"grad_output": np.array(1, np.float32)}, ValueError, f"Expected grad_output to be of shape [{M}, {N}] (rows of kept.normalised and of weight), but got []"),
    ({"grad_output": np.zeros((N, M), np.float32)}, ValueError, f"Expected grad_output to be of shape [{M}, {N}] (rows of kept.normalised and of weight), but got [{N}, {M}]"),
    ({"grad_output": np.zeros((M, N), np.float16)}, TypeError, f"Expected grad_output {DTYPE} float16"),
    ({"kept": (NORMALISED, INVVAR)}, TypeError, "kept must be the Kept that layer_norm_linear_forward returned, got builtins.tuple"),
    ({"kept": Kept(NORMALISED[0], INVVAR)}, ValueError, f"kept.normalised must be a matrix, got 1-D of shape [{K}]"),
    ({"kept": Kept(NORMALISED.tolist(), INVVAR)}, TypeError, f"kept.normalised {NO_ARRAY} builtins.list"),
    ({"kept": Kept(NORMALISED, INVVAR[1:])}, ValueError, f"Expected kept.invvar to be of shape [{M}] (rows of kept.normalised), but got [{M - 1}]"),
    ({"kept": Kept(NORMALISED, INVVAR, np.zeros(2, np.int32), NORMALISED[:, :3])}, ValueError, f"Expected kept.values to be of shape [{M}, 2] (rows of kept.normalised and kept.columns), but got [{M}, 3]"),
    ({"kept": Kept(NORMALISED, INVVAR.astype(float))}, TypeError, f"Expected kept.invvar {DTYPE} float64"),
]  # fmt: skip


@pytest.fixture
def nothing_launched(monkeypatch):
    """Every launch fails; and a right call shows that it would."""
    monkeypatch.setattr(arrays.HostBackend, "launch", None)
    x, gamma, beta, weight, grad = (tensor.numpy() for tensor in problem())
    forward = {"x": x, "gamma": gamma, "beta": beta, "weight": weight}
    backward = {**forward, "grad_output": grad, "kept": Kept(NORMALISED, INVVAR)}
    del backward["x"]
    for function, given in ((layer_norm_linear_forward, forward), (layer_norm_linear_backward, backward)):
        with pytest.raises(TypeError, match="'NoneType' object is not callable"):
            function(**given)
    return forward, backward


@pytest.mark.parametrize(("wrong", "error", "text"), FORWARD + BOTH)
def test_what_a_forward_cannot_take_is_named_and_nothing_is_launched(nothing_launched, wrong, error, text):
    forward, _ = nothing_launched
    with pytest.raises(error, match=f"^{re.escape(text.format('x'))}$"):
        layer_norm_linear_forward(**(forward | wrong))


@pytest.mark.parametrize(("wrong", "error", "text"), BACKWARD + BOTH)
def test_what_a_backward_cannot_take_is_named_and_nothing_is_launched(nothing_launched, wrong, error, text):
    _, backward = nothing_launched
    with pytest.raises(error, match=f"^{re.escape(text.format('kept.normalised'))}$"):
        layer_norm_linear_backward(**(backward | wrong))
