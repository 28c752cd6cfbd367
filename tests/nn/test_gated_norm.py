"""`gated_rms_norm` in PyTorch: against the formulas of Mamba-2 and Qwen3-Next by PyTorch's own operations."""

import copy
import pickle

import pytest
import torch
from draws import paired
from nn.norms import Named
from torch.nn.functional import rms_norm, silu

import normlab.nn
from normlab.nn import GatedRMSNorm, engine, gated_rms_norm

EPS = 1e-5
MODES = pytest.mark.parametrize(
    ("before", "memory_efficient"), [(True, False), (True, True), (False, False)], ids=["saved", "recompute", "gated x"]
)
ENGINE = pytest.mark.parametrize("run_by", ["auto", "simulator"])


def drawn(dtype=torch.float64, shape=(2, 3, 24), weight=True):
    """x, a gate away from 0 and a weight."""
    random = torch.Generator().manual_seed(0)
    x, gate = torch.randn(2, *shape, generator=random)
    given = [x, gate + 0.3 * gate.sign(), torch.rand(shape[-1], generator=random) + 0.5][: 3 if weight else 2]
    return [one.to(dtype).requires_grad_() for one in given]


def ours(before, memory_efficient, given):
    weight = given[2] if len(given) > 2 else None
    return gated_rms_norm(*given[:2], weight, EPS, norm_before_gate=before, memory_efficient=memory_efficient)


def truth(before, given):
    """Qwen3NextRMSNormGated's forward, and mamba_ssm's rms_norm_ref with a gate, in float64."""
    x, gate, *weight = (one.double() for one in given)
    if before:
        return rms_norm(x, x.shape[-1:], *weight, eps=EPS) * silu(gate)
    return rms_norm(x * silu(gate), x.shape[-1:], *weight, eps=EPS)


def gradients(output, given):
    grad = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output.dtype)
    return torch.autograd.grad(output, given, grad)


@MODES
@pytest.mark.parametrize(
    ("run_by", "weight", "dtype"),
    paired(["auto", "simulator"], [True, False], [torch.float32, torch.bfloat16, torch.float64]),
)
def test_output_and_gradients_are_pytorch_s(before, memory_efficient, run_by, weight, dtype):
    given = drawn(dtype, weight=weight)
    with engine(run_by):
        output = ours(before, memory_efficient, given)
        found = gradients(output, given)
    want = truth(before, given)
    close = {torch.float32: 4e-6, torch.bfloat16: 2e-2, torch.float64: 1e-12}[dtype]
    assert output.dtype == dtype
    torch.testing.assert_close(output.double(), want, rtol=close, atol=close)
    loose = 4 if memory_efficient else 2  # x̂ has the output's rounding
    for mine, theirs in zip(found, gradients(want.to(dtype), given), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=loose * close, atol=loose * close)


@MODES
@ENGINE
def test_a_weight_of_another_dtype_gives_the_output_its_dtype(before, memory_efficient, run_by):
    x, gate, weight = drawn(torch.float32)
    given = x.detach().bfloat16().requires_grad_(), gate.detach().bfloat16().requires_grad_(), weight
    with engine(run_by):
        output = ours(before, memory_efficient, given)
        found = gradients(output, given)
    assert output.dtype == torch.float32
    for mine, theirs in zip(found, gradients(truth(before, given).float(), given), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("memory_efficient", [False, True], ids=["saved", "recompute"])
def test_the_backward_keeps_the_gate_and_either_x_or_the_output(memory_efficient):
    given, kept = drawn(torch.float32), []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        output = ours(True, memory_efficient, given)
    rows = {one.data_ptr() for one in kept if one.shape == output.shape}
    assert rows == {(output if memory_efficient else given[0]).data_ptr(), given[1].data_ptr()}


def test_a_module_has_the_state_dict_of_torch_s_norm():
    x, gate, weight = (one.detach() for one in drawn(torch.float32))
    for before in (True, False):
        module = GatedRMSNorm(24, eps=EPS, norm_before_gate=before)
        assert (module.weight == 1).all()
        module.load_state_dict({"weight": weight})
        for same in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            torch.testing.assert_close(same(x, gate), truth(before, (x, gate, weight)).float())


@ENGINE
def test_a_gate_that_is_a_slice_of_a_projection_is_differentiated(run_by):
    projected = torch.randn(3, 48, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with engine(run_by):
        found = gradients(gated_rms_norm(projected[:, :24], projected[:, 24:], eps=EPS), [projected])
    want = gradients(truth(True, (projected[:, :24], projected[:, 24:])).float(), [projected])
    torch.testing.assert_close(found[0], want[0], rtol=1e-5, atol=1e-5)


@ENGINE
def test_a_gate_of_0_gets_its_gradient_from_x(run_by):
    x, _, weight = drawn(torch.float32)
    gate = torch.zeros_like(x, requires_grad=True)
    with engine(run_by):
        output = gated_rms_norm(x, gate, weight, EPS)
        (found,) = torch.autograd.grad(output.sum(), gate)
    assert (output == 0).all()
    torch.testing.assert_close(found, rms_norm(x, (24,), weight, EPS) / 2)


X = torch.zeros(2, 4)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (
            lambda: gated_rms_norm([1.0], X),
            TypeError,
            r"gated_rms_norm\(\): argument 'x' \(position 1\) must be Tensor",
        ),
        (lambda: gated_rms_norm(X, None), TypeError, r"argument 'gate' \(position 2\) must be Tensor"),
        (lambda: gated_rms_norm(X, X[:1]), RuntimeError, r"gate of shape \[1, 4\] and x of shape \[2, 4\]"),
        (lambda: gated_rms_norm(X, X, torch.ones(5)), RuntimeError, "normalized_shape"),
        (lambda: gated_rms_norm(X[0, 0], X[0, 0]), RuntimeError, "at least one dimension"),
        (lambda: gated_rms_norm(X, X.half()), RuntimeError, "gate to have scalar type of Float, as x, but got Half"),
        (lambda: gated_rms_norm(X, X.to("meta")), RuntimeError, "on the same device"),
        (lambda: gated_rms_norm(X.int(), X.int()), NotImplementedError, "not implemented for 'Int'"),
        (lambda: gated_rms_norm(X, X, eps="1"), TypeError, "'eps'"),
        (lambda: gated_rms_norm(X, X, norm_before_gate=2), ValueError, "norm_before_gate must be True or False, got 2"),
        (lambda: gated_rms_norm(X, X, memory_efficient="exact"), ValueError, "must be True or False, got 'exact'"),
        (
            lambda: gated_rms_norm(X, X, norm_before_gate=False, memory_efficient=True),
            ValueError,
            "needs norm_before_gate=True, got norm_before_gate=False",
        ),
        (lambda: GatedRMSNorm(4, norm_before_gate=False, memory_efficient=True), ValueError, "needs norm_before_gate"),
        (lambda: GatedRMSNorm((3, 4)), ValueError, "a gated norm goes over the last dimension alone"),
        (lambda: GatedRMSNorm(4, memory_efficient=1), ValueError, "memory_efficient must be True or False, got 1"),
        (
            lambda: GatedRMSNorm(8, elementwise_affine=False)(X, X),
            RuntimeError,
            r"normalized_shape=\[8\], expected input with shape \[\*(, )?8\]",
        ),
    ],
)
def test_a_wrong_argument_is_told_before_anything_is_computed(call, error, said):
    with pytest.raises(error, match=said):
        call()


def test_a_module_shows_the_options_that_are_not_the_defaults():
    assert repr(GatedRMSNorm(4)) == "GatedRMSNorm((4,), eps=1e-06, elementwise_affine=True)"
    assert repr(GatedRMSNorm(4, norm_before_gate=False)).endswith("=True, norm_before_gate=False)")
    assert repr(GatedRMSNorm(4, memory_efficient=True)).endswith(", memory_efficient=True)")


def test_a_torch_function_of_a_tensor_gets_the_call():
    named = torch.zeros(2, 4).as_subclass(Named)
    options = {"norm_before_gate": False, "memory_efficient": False}
    assert gated_rms_norm(X, named, norm_before_gate=False) == (gated_rms_norm, 4, options)
    assert {"gated_rms_norm", "GatedRMSNorm"} <= set(normlab.nn.__all__)
