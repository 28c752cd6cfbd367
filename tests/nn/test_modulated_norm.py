"""`modulated_layer_norm` in PyTorch: against DiT's `modulate(norm(x), shift, scale)` by PyTorch's own operations."""

import copy
import pickle

import pytest
import torch
from nn.norms import Named
from torch.nn.functional import layer_norm

import normlab.nn
from normlab.nn import ModulatedLayerNorm, engine, modulated_layer_norm

EPS = 1e-5
ENGINE = pytest.mark.parametrize("run_by", ["auto", "simulator"])


def drawn(dtype=torch.float64, shape=(2, 3, 24)):
    """x, scale and shift."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=random)
    scale, shift = torch.randn(2, shape[0], shape[-1], generator=random)
    return [one.to(dtype).requires_grad_() for one in (x, scale, shift)]


def truth(x, scale, shift):
    """The definition, in float64."""
    x, scale, shift = (one.double() for one in (x, scale, shift))
    middle = (1,) * (x.dim() - 2)
    scale, shift = (one.reshape(one.shape[0], *middle, one.shape[-1]) for one in (scale, shift))
    return layer_norm(x, x.shape[-1:], eps=EPS) * (1 + scale) + shift


def gradients(output, given):
    grad = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output.dtype)
    return torch.autograd.grad(output, given, grad)


@ENGINE
@pytest.mark.parametrize("shape", [(2, 3, 24), (3, 24), (2, 2, 3, 8)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_output_and_gradients_are_pytorch_s(run_by, shape, dtype):
    given = drawn(dtype, shape)
    with engine(run_by):
        output = modulated_layer_norm(*given, EPS)
        found = gradients(output, given)
    want = truth(*given)
    close = {torch.float32: 4e-6, torch.bfloat16: 3e-2, torch.float64: 1e-12}[dtype]
    assert output.dtype == dtype
    torch.testing.assert_close(output.double(), want, rtol=close, atol=close)
    for mine, theirs in zip(found, gradients(want.to(dtype), given), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2 * close, atol=2 * close)


@ENGINE
def test_parameters_of_another_dtype_give_the_output_theirs(run_by):
    x, scale, shift = drawn(torch.float32)
    given = x.detach().bfloat16().requires_grad_(), scale, shift
    with engine(run_by):
        output = modulated_layer_norm(*given, EPS)
        found = gradients(output, given)
    assert [one.dtype for one in (output, *found)] == [torch.float32, torch.bfloat16, torch.float32, torch.float32]
    for mine, theirs in zip(found, gradients(truth(*given).float(), given), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)


@ENGINE
def test_parameters_that_are_slices_of_a_projection_are_differentiated(run_by):
    x, _, _ = drawn(torch.float32)
    projected = torch.randn(2, 72, generator=torch.Generator().manual_seed(2)).requires_grad_()
    with engine(run_by):
        found = gradients(modulated_layer_norm(x, projected[:, 24:48], projected[:, :24], EPS), [x, projected])
    want = gradients(truth(x, projected[:, 24:48], projected[:, :24]).float(), [x, projected])
    for mine, theirs in zip(found, want, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_compiled_for_one_row_per_sample_the_shift_s_gradient_has_memory_of_its_own():
    given = drawn(torch.float32, (3, 24))
    output = torch.compile(modulated_layer_norm, fullgraph=True, backend="aot_eager")(*given)
    for mine, theirs in zip(gradients(output, given), gradients(modulated_layer_norm(*given), given), strict=True):
        assert torch.equal(mine, theirs)


def test_a_module_is_copied_pickled_and_shown():
    given = [one.detach() for one in drawn(torch.float32)]
    module = ModulatedLayerNorm(eps=EPS)
    assert repr(module) == "ModulatedLayerNorm(eps=1e-05)"
    for same in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        torch.testing.assert_close(same(*given), truth(*given).float())


X, S = torch.zeros(2, 3, 4), torch.zeros(2, 4)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: modulated_layer_norm([1.0], S, S), TypeError, r"argument 'x' \(position 1\) must be Tensor"),
        (lambda: modulated_layer_norm(X, None, S), TypeError, r"argument 'scale' \(position 2\) must be Tensor"),
        (
            lambda: modulated_layer_norm(X[0, 0], S, S),
            RuntimeError,
            r"shape \(batch, ..., n\), but got x of shape \[4\]",
        ),
        (
            lambda: modulated_layer_norm(X, S[:1], S),
            RuntimeError,
            r"scale to be of shape \[2, 4\], .* but got scale of shape \[1, 4\] and x of shape \[2, 3, 4\]",
        ),
        (lambda: modulated_layer_norm(X, S, X), RuntimeError, r"shift to be of shape \[2, 4\]"),
        (lambda: modulated_layer_norm(X, S, S.half()), RuntimeError, "expected scalar type Float but found Half"),
        (lambda: modulated_layer_norm(X, S.double(), S.double()), RuntimeError, "mixed dtype"),
        (lambda: modulated_layer_norm(X, S, S.to("meta")), RuntimeError, "on the same device"),
        (lambda: modulated_layer_norm(X.int(), S.int(), S.int()), NotImplementedError, "not implemented for 'Int'"),
        (lambda: modulated_layer_norm(X, S, S, eps="1"), TypeError, "'eps'"),
    ],
)
def test_a_wrong_argument_is_told_before_anything_is_computed(call, error, said):
    with pytest.raises(error, match=said):
        call()


def test_a_torch_function_of_a_tensor_gets_the_call():
    assert modulated_layer_norm(X, S.as_subclass(Named), S)[:2] == (modulated_layer_norm, 4)
    assert {"modulated_layer_norm", "ModulatedLayerNorm"} <= set(normlab.nn.__all__)
