"""The contract that apex's tests state (tests/L0/run_fused_layer_norm), with parameters that tell right from wrong.

Theirs: normalized_shape (32, 16), 16 or 65536 rows, contiguous or sliced, each dtype, affine or not, both memory modes.
They leave gamma at 1 and beta at 0; here both are random, some of gamma 0 for "exact", and every gradient is compared,
with PyTorch's in float64. On CPU tensors (PyTorch's operations, and the kernels in the simulator) and on a GPU's.
"""

import itertools
from contextlib import nullcontext

import pytest
import torch
from draws import paired
from nn.norms import MODES
from torch.nn import functional

from normlab import nn

SHAPE = (32, 16)
KINDS = (nn.FusedLayerNorm, nn.FusedRMSNorm)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
PLACES = ["cpu", "simulator", "cuda"]


def on_a_gpu_if(asked: bool) -> None:
    if asked and not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU and a torch built for CUDA")


def world(place: str):
    return nn.engine("simulator") if place == "simulator" else nullcontext()


def device(place: str) -> str:
    return "cuda" if place == "cuda" else "cpu"


def randomise(parameters, memory_efficient) -> None:
    """Weights, and a bias if it follows them."""
    for parameter in parameters:
        torch.nn.init.uniform_(parameter, 0.5, 1.5)
    if memory_efficient == "exact":
        for weight in parameters[:1]:
            weight.detach()[0, :5] = 0


def rows(count: int, contiguous: bool, dtype, place: str) -> torch.Tensor:
    if contiguous:
        return torch.randn(count, *SHAPE, dtype=dtype).to(device(place)).requires_grad_()
    wide = torch.randn(3 * count, 160, 48, dtype=dtype).to(device(place))
    return wide[::3, ::5, ::3].requires_grad_()


def hold(norm, x, parameters, eps: float, rms: bool, place: str) -> None:
    """Assert that norm(x), its gradient and those of the parameters, (weight, bias) or fewer, are the norm's."""
    wide, *wides = [leaf.detach().double().requires_grad_() for leaf in (x, *parameters)]
    reference = functional.rms_norm if rms else functional.layer_norm
    want = reference(wide, SHAPE, *wides, eps=eps)
    dy = torch.randn(x.shape).to(want.device, parameters[0].dtype if parameters else x.dtype)
    with world(place):
        output = norm(x)
        output.backward(dy)
    want.backward(dy.double())
    assert output.dtype == dy.dtype
    # apex's tolerances (rtol, atol) of outputs; its gradients have these or wider ones
    coarser = x.dtype if x.dtype != torch.float32 else output.dtype
    rtol, atol = {torch.float32: (1e-4, 1e-4), torch.float16: (1e-2, 1e-2), torch.bfloat16: (5e-2, 5e-2)}[coarser]
    torch.testing.assert_close(output.double(), want, rtol=rtol, atol=atol)
    torch.testing.assert_close(x.grad.double(), wide.grad, rtol=rtol, atol=atol)
    for got, other in zip(parameters, wides, strict=True):
        torch.testing.assert_close(got.grad.double(), other.grad, rtol=rtol, atol=atol * len(x) ** 0.5)


def hold_module(kind, affine, memory_efficient, count, contiguous, dtype, place) -> None:
    torch.manual_seed(42)
    module = kind(SHAPE, elementwise_affine=affine, memory_efficient=memory_efficient)
    randomise([*module.parameters()], memory_efficient)
    module.to(device(place), dtype)
    x = rows(count, contiguous, dtype, place)
    hold(module, x, [*module.parameters()], module.eps, kind is nn.FusedRMSNorm, place)


# Rows where they are simulated, instead of 16: the backward has one block for a module's, eight for a function's.
SIMULATED = {"modules": 3, "functions": 9}
CASES = [
    (count, contiguous, dtype)
    for count, contiguous, dtype in itertools.product((16, 128), (True, False), DTYPES)
    if count == 16 or dtype == torch.float32
]
PLACED = [
    (place, *case)
    for place, case in itertools.product(PLACES, CASES)
    if case[:2] == (16, True) or place != "simulator"  # which is slow; sliced inputs it has in the functions' test
]


@pytest.mark.parametrize(("kind", "affine", "memory_efficient", "case"), paired(KINDS, [True, False], MODES, PLACED))
def test_apex_s_contract(kind, affine, memory_efficient, case):
    place, count, contiguous, dtype = case
    on_a_gpu_if(place == "cuda")
    if place == "simulator":
        count = SIMULATED["modules"]
    hold_module(kind, affine, memory_efficient, count, contiguous, dtype, place)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("memory_efficient", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_apex_s_largest_batch(kind, memory_efficient, dtype):
    """65536 rows: more than a grid's y dimension has (apex#411)."""
    on_a_gpu_if(True)
    hold_module(kind, True, memory_efficient, 65536, True, dtype, "cuda")


def test_apex_s_largest_batch_on_the_cpu():
    """Of short rows, as their number is what counts here: the last two alone are what they are among all."""
    shape = (4, 2)
    module = nn.FusedLayerNorm(shape, memory_efficient=True)
    randomise([*module.parameters()], True)
    x = torch.randn(65536, *shape, requires_grad=True)
    module(x).sum().backward()
    last = x.detach()[-2:].clone().requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(module(last).sum(), last)[0], x.grad[-2:], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(module.bias.grad, torch.full(shape, 65536.0))


FUNCTIONS = [
    (nn.fused_layer_norm_affine, False, torch.float16),
    (nn.fused_rms_norm_affine, True, torch.float16),
    (nn.mixed_dtype_fused_layer_norm_affine, False, torch.float32),
    (nn.mixed_dtype_fused_rms_norm_affine, True, torch.float32),
]


@pytest.mark.parametrize(("given", "memory_efficient", "place"), paired(FUNCTIONS, MODES, PLACES))
def test_apex_s_functions(given, memory_efficient, place):
    (function, rms, parameter_dtype), dtype = given, torch.float16
    on_a_gpu_if(place == "cuda")
    torch.manual_seed(42)
    parameters = [torch.empty(SHAPE, dtype=parameter_dtype) for _ in range(1 if rms else 2)]
    randomise(parameters, memory_efficient)
    parameters = [parameter.to(device(place)).requires_grad_() for parameter in parameters]
    x = rows(SIMULATED["functions"] if place == "simulator" else 16, False, dtype, place)
    hold(lambda x: function(x, *parameters, SHAPE, 1e-6, memory_efficient), x, parameters, 1e-6, rms, place)


@pytest.mark.parametrize("kind", [nn.FusedLayerNorm, nn.FusedRMSNorm])
def test_onnx_export_falls_back_to_aten_s_operator(kind, tmp_path):
    pytest.importorskip("onnx", reason="normlab[test] has it")
    pytest.importorskip("onnxscript", reason="normlab[test] has it")
    import onnx

    file = tmp_path / "norm.onnx"
    model = kind((32, 16), memory_efficient=True).eval()
    torch.onnx.export(model, (torch.randn(4, 32, 16),), file, opset_version=18)
    names = {node.op_type for node in onnx.load(file).graph.node}
    assert names & {"LayerNormalization", "ReduceMean"}
