"""Inside `engine("simulator")` CPU tensors go through the kernels, forward and backward."""

import pytest
import torch
from draws import cases, paired
from hypothesis import given, settings
from hypothesis import strategies as st
from nn.norms import MODES, hold_to_bounds, through_torch

from normlab import nn
from normlab.host import norms


@settings(max_examples=20)
@given(case=cases(widths=(1, 33, 128), rows=(0, 1, 3)), memory_efficient=st.sampled_from(MODES))
def test_the_kernels_are_within_the_same_bounds(case, memory_efficient):
    with nn.engine("simulator"):
        hold_to_bounds(case, memory_efficient, *through_torch(case, memory_efficient))


@pytest.mark.parametrize("memory_efficient", MODES)
def test_a_gradient_of_float32_is_not_rounded_to_the_half_of_the_output_in_between(memory_efficient):
    torch.manual_seed(0)
    x = torch.randn(3, 64).mul(1e-6).requires_grad_()
    weight, dy = torch.rand(64).add(0.5).half(), torch.randn(3, 64).half()
    with nn.engine("simulator"):
        output = nn.rms_norm(x, 64, weight, 1e-16, memory_efficient)
    output.backward(dy)
    assert x.grad.abs().max() > torch.finfo(torch.float16).max
    assert (x.grad.half().float() != x.grad).any()
    wide = x.detach().double().requires_grad_()
    nn.rms_norm(wide, 64, weight.double(), 1e-16).backward(dy.double())
    torch.testing.assert_close(x.grad.double(), wide.grad, rtol=5e-3, atol=1e3)


@pytest.mark.parametrize("norm", [nn.FusedLayerNorm, nn.FusedRMSNorm])
def test_kernels_run_forward_and_backward_where_the_forward_was(norm, monkeypatch):
    called = []
    for name in ("forward", "backward"):
        function = getattr(norms, name)
        monkeypatch.setattr(norms, name, lambda *a, f=function, n=name, **k: called.append(n) or f(*a, **k))
    module, x = norm(8), torch.randn(2, 8, requires_grad=True)
    with nn.engine("simulator"):
        output = module(x)
    output.sum().backward()
    assert called == ["forward", "backward"]
    module(x).sum().backward()
    assert len(called) == 2


def test_a_second_derivative_of_the_kernels():
    x = torch.randn(1, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(4, dtype=torch.float64).add(0.5).requires_grad_()
    with nn.engine("simulator"):
        for memory_efficient in (False, True):
            function = lambda x, w, mode=memory_efficient: nn.layer_norm(x, 4, w, None, 1e-5, mode)  # noqa: E731
            assert torch.autograd.gradgradcheck(function, (x, weight))


@pytest.mark.parametrize(
    ("norm", "memory_efficient", "shape"),
    paired([nn.FusedLayerNorm, nn.FusedRMSNorm], MODES, [((3, 0), 0), ((3, 2, 0), (2, 0)), ((0, 0), 0)]),
)
def test_no_columns_give_an_empty_output_and_empty_gradients(norm, memory_efficient, shape):
    module, x = norm(shape[1], memory_efficient=memory_efficient), torch.randn(shape[0], requires_grad=True)
    with nn.engine("simulator"):
        output = module(x)
        compiled = torch.compile(module, fullgraph=True, backend="aot_eager")(x)
    assert output.shape == compiled.shape == x.shape
    output.sum().backward()
    assert x.grad.shape == x.shape
    assert all(parameter.grad.shape == parameter.shape for parameter in module.parameters())
    torch.compiler.reset()


def test_an_unknown_engine_is_named():
    with pytest.raises(ValueError, match="unknown engine 'cuda': choose one of auto, simulator"), nn.engine("cuda"):
        pass
