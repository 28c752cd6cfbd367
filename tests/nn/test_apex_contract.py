"""The contract that apex's tests state (tests/L0/run_fused_layer_norm), with parameters that tell right from wrong.

Theirs: normalized_shape (32, 16), 16 or 65536 rows, contiguous or sliced, each dtype, affine or not, both memory modes.
They leave gamma at 1 and beta at 0; here both are random, and every gradient is compared, with float64.
"""

import itertools

import pytest
import torch
from nn.norms import MODES

from normlab import nn


def randomised(kind, affine, memory_efficient, dtype) -> torch.nn.Module:
    torch.manual_seed(42)
    module = kind((32, 16), elementwise_affine=affine, memory_efficient=memory_efficient)
    for parameter in module.parameters():
        torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return module.to(dtype)


def rows(count: int, contiguous: bool, dtype) -> torch.Tensor:
    if contiguous:
        return torch.randn(count, 32, 16, dtype=dtype)
    return torch.randn(3 * count, 160, 48, dtype=dtype)[::3, ::5, ::3]


CASES = [
    (rows, contiguous, dtype)
    for rows, contiguous, dtype in itertools.product(
        (16, 128), (True, False), (torch.float32, torch.float16, torch.bfloat16)
    )
    if rows == 16 or dtype == torch.float32
]


@pytest.mark.parametrize(("count", "contiguous", "dtype"), CASES)
@pytest.mark.parametrize("memory_efficient", MODES)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("kind", [nn.FusedLayerNorm, nn.FusedRMSNorm])
def test_apex_s_contract(kind, affine, memory_efficient, count, contiguous, dtype):
    module = randomised(kind, affine, memory_efficient, dtype)
    x = rows(count, contiguous, dtype).requires_grad_()
    dy = torch.randn(count, 32, 16, dtype=dtype)
    output = module(x)
    output.backward(dy)
    reference = randomised(kind, affine, False, dtype).double()
    wide = x.detach().double().requires_grad_()
    reference(wide).backward(dy.double())
    # apex's tolerances (rtol, atol) of outputs; its gradients have these or wider ones
    rtol, atol = {torch.float32: (1e-4, 1e-4), torch.float16: (1e-2, 1e-2), torch.bfloat16: (5e-2, 5e-2)}[dtype]
    torch.testing.assert_close(output.double(), reference(wide), rtol=rtol, atol=atol)
    torch.testing.assert_close(x.grad.double(), wide.grad, rtol=rtol, atol=atol)
    for got, want in zip(module.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(got.grad.double(), want.grad, rtol=rtol, atol=atol * count**0.5)


def test_apex_s_largest_batch():
    """65536 rows: more than a grid's y dimension has (apex#411)."""
    module = randomised(nn.FusedLayerNorm, True, True, torch.float32)
    x = torch.randn(65536, 32, 16, requires_grad=True)
    module(x).sum().backward()
    last = x.detach()[-2:].clone().requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(module(last).sum(), last)[0], x.grad[-2:], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(module.bias.grad, torch.full((32, 16), 65536.0))


@pytest.mark.parametrize("kind", [nn.FusedLayerNorm, nn.FusedRMSNorm])
def test_onnx_export_falls_back_to_aten_s_operator(kind, tmp_path):
    pytest.importorskip("onnx", reason="torch.onnx.export needs onnx, which is not installed")
    pytest.importorskip("onnxscript", reason="torch.onnx.export needs onnxscript, which is not installed")
    import onnx

    file = tmp_path / "norm.onnx"
    torch.onnx.export(kind((32, 16), memory_efficient=True), (torch.randn(4, 32, 16),), file, opset_version=18)
    names = {node.op_type for node in onnx.load(file).graph.node}
    assert names & {"LayerNormalization", "ReduceMean"}
