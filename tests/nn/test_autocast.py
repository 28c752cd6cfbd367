"""Autocast: float32 statistics of the input as it comes, the output in the autocast dtype; and GradScaler."""

import pytest
import torch
from nn.norms import MODES
from torch._subclasses.fake_tensor import FakeTensorMode

from normlab import nn

DTYPES = (torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("memory_efficient", MODES)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("kind", [nn.FusedLayerNorm, nn.FusedRMSNorm])
def test_outputs_have_the_autocast_dtype_and_gradients_their_tensors(kind, affine, memory_efficient, dtype):
    torch.manual_seed(0)
    norm = kind(16, 1e-5, affine, memory_efficient)
    for parameter in norm.parameters():
        torch.nn.init.uniform_(parameter, 0.5, 1.5)
    for input_dtype in (torch.float32, dtype):
        # the statistics see the input as it is: rounded to a half, these rows would be constant
        x = (torch.randn(4, 16) + (1e4 if input_dtype == torch.float32 else 0)).to(input_dtype).requires_grad_()
        with torch.autocast("cpu", dtype):
            output = norm(x)
        assert output.dtype == dtype
        norm.zero_grad()
        output.sum().backward()
        assert x.grad.dtype == input_dtype
        assert {parameter.grad.dtype for parameter in norm.parameters()} <= {torch.float32}
        wide = kind(16, 1e-5, affine).double()
        wide.load_state_dict(norm.state_dict())
        torch.testing.assert_close(output.double(), wide(x.double()), rtol=2**-6, atol=2**-6)


def test_float64_is_left_alone_as_in_torch():
    with torch.autocast("cpu", torch.bfloat16):
        assert nn.FusedLayerNorm(4).double()(torch.randn(2, 4).double()).dtype == torch.float64


def test_a_half_that_is_not_the_autocast_dtype_goes_through_float32():
    x = torch.full((2, 4), 2.0**20, dtype=torch.bfloat16)  # infinite in float16
    x[:, 0] = 0
    with torch.autocast("cpu", torch.float16):
        output = nn.FusedLayerNorm(4)(x)
    assert output.dtype == torch.float16
    assert output.isfinite().all()


def test_under_cuda_autocast_too():
    with FakeTensorMode():
        x, weight = torch.empty(2, 8, device="cuda"), torch.empty(8, device="cuda")  # without gradients
        torch.set_autocast_enabled("cuda", True)
        try:
            assert nn.layer_norm(x, 8, weight).dtype == torch.get_autocast_dtype("cuda")
            assert torch.nn.functional.layer_norm(x, (8,), weight).dtype == torch.float32  # where we differ
        finally:
            torch.set_autocast_enabled("cuda", False)


def test_compiled_under_autocast():
    norm = nn.FusedLayerNorm(8, memory_efficient=True)
    compiled = torch.compile(norm, fullgraph=True, backend="aot_eager")
    x = torch.randn(4, 8)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(compiled(x), norm(x), rtol=0, atol=0)
    assert compiled(x).dtype == torch.float32


def test_grad_scaler_steps_and_skips_a_step_of_infinite_gradients():
    torch.manual_seed(0)
    norm = nn.FusedLayerNorm(8, memory_efficient="exact")
    optimizer, scaler = torch.optim.SGD(norm.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for scale, moves in ((1.0, True), (torch.inf, False)):
        before = norm.weight.detach().clone()
        with torch.autocast("cpu", torch.float16):
            loss = norm(torch.randn(4, 8)).float().square().sum() * scale
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert bool((norm.weight != before).any()) == moves
        assert norm.weight.isfinite().all()
