"""Inside `engine("simulator")` CPU tensors go through the kernels, forward and backward."""

import pytest
import torch
from draws import SAME, cases
from hypothesis import given, settings
from hypothesis import strategies as st
from nn.norms import MODES, hold_to_bounds, through_torch

from normlab import nn, ops

# Recomputing, the kernels round grad_input to the output's dtype, which must not be the finer one to say one bound.
DTYPES = [*SAME, ("float32", "float16"), ("float32", "bfloat16")]


@settings(max_examples=20)
@given(case=cases(widths=(1, 33, 128), rows=(0, 1, 3), dtypes=DTYPES), memory_efficient=st.sampled_from(MODES))
def test_the_kernels_are_within_the_same_bounds(case, memory_efficient):
    rounded = case.grad_output.dtype.name if memory_efficient else None
    with nn.engine("simulator"):
        hold_to_bounds(case, memory_efficient, *through_torch(case, memory_efficient), rounded)


@pytest.mark.parametrize("norm", [nn.FusedLayerNorm, nn.FusedRMSNorm])
def test_kernels_run_forward_and_backward_where_the_forward_was(norm, monkeypatch):
    called = []
    for name in ("layer_norm_forward", "layer_norm_backward", "rms_norm_forward", "rms_norm_backward"):
        function = getattr(ops, name)
        monkeypatch.setattr(ops, name, lambda *a, f=function, n=name, **k: called.append(n) or f(*a, **k))
    module, x = norm(8), torch.randn(2, 8, requires_grad=True)
    with nn.engine("simulator"):
        output = module(x)
    output.sum().backward()
    kind = "layer" if norm is nn.FusedLayerNorm else "rms"
    assert called == [f"{kind}_norm_forward", f"{kind}_norm_backward"]
    module(x).sum().backward()
    assert len(called) == 2


def test_a_second_derivative_of_the_kernels():
    x = torch.randn(1, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(4, dtype=torch.float64).add(0.5).requires_grad_()
    with nn.engine("simulator"):
        for memory_efficient in (False, True):
            function = lambda x, w, mode=memory_efficient: nn.layer_norm(x, 4, w, None, 1e-5, mode)  # noqa: E731
            assert torch.autograd.gradgradcheck(function, (x, weight))


def test_an_unknown_engine_is_named():
    with pytest.raises(ValueError, match="unknown engine 'cuda': choose one of auto, simulator"), nn.engine("cuda"):
        pass
