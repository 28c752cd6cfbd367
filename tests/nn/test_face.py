"""The names, signatures and defaults are apex's; the modules are torch.nn's in all but their forward."""

import copy
import inspect
import pickle
import subprocess
import sys

import pytest
import torch
from nn.norms import MODES

from normlab import nn

# apex/normalization/fused_layer_norm.py
SIGNATURES = {
    "fused_layer_norm": "(input, normalized_shape, eps=1e-06, memory_efficient=False)",
    "fused_layer_norm_affine": "(input, weight, bias, normalized_shape, eps=1e-06, memory_efficient=False)",
    "mixed_dtype_fused_layer_norm_affine": "(input, weight, bias, normalized_shape, eps=1e-06, memory_efficient=False)",
    "fused_rms_norm": "(input, normalized_shape, eps=1e-06, memory_efficient=False)",
    "fused_rms_norm_affine": "(input, weight, normalized_shape, eps=1e-06, memory_efficient=False)",
    "mixed_dtype_fused_rms_norm_affine": "(input, weight, normalized_shape, eps=1e-06, memory_efficient=False)",
    "FusedLayerNorm": "(normalized_shape, eps=1e-05, elementwise_affine=True, memory_efficient=False)",
    "FusedRMSNorm": "(normalized_shape, eps=1e-05, elementwise_affine=True, memory_efficient=False)",
    "MixedFusedLayerNorm": "(normalized_shape, eps=1e-05, *, memory_efficient=False, **kwargs)",
    "MixedFusedRMSNorm": "(normalized_shape, eps=1e-05, *, memory_efficient=False, **kwargs)",
}
MODULES = [(nn.FusedLayerNorm, torch.nn.LayerNorm), (nn.FusedRMSNorm, torch.nn.RMSNorm)]


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_are_apex_s(name):
    signature = inspect.signature(getattr(nn, name))
    ours = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    if not name.startswith("Mixed"):  # what apex does not have can be given by name only
        ours = [parameter for parameter in ours if parameter.kind is not inspect.Parameter.KEYWORD_ONLY]
    assert str(inspect.Signature(ours)) == SIGNATURES[name]


@pytest.mark.parametrize(("ours", "theirs"), MODULES)
@pytest.mark.parametrize("affine", [True, False])
def test_a_module_is_torch_s_in_all_but_its_forward(ours, theirs, affine):
    one, other = ours((4, 6), 1e-4, affine), theirs((4, 6), 1e-4, affine)
    assert isinstance(one, theirs)
    assert one.extra_repr() == other.extra_repr()
    assert one.state_dict().keys() == other.state_dict().keys()
    for parameter in other.parameters():
        torch.nn.init.normal_(parameter)
    one.load_state_dict(other.state_dict())
    other.load_state_dict(one.state_dict())
    x = torch.randn(3, 4, 6)
    torch.testing.assert_close(one(x), other(x))
    one.reset_parameters()
    for parameter, value in zip(one.parameters(), (1, 0), strict=False):
        assert (parameter == value).all()


@pytest.mark.parametrize("kind", [nn.FusedLayerNorm, nn.FusedRMSNorm, nn.MixedFusedLayerNorm, nn.MixedFusedRMSNorm])
def test_modules_pickle_copy_and_move(kind):
    norm = kind(5, 1e-3, memory_efficient="exact")
    x = torch.randn(2, 5)
    for twin in (copy.deepcopy(norm), pickle.loads(pickle.dumps(norm))):
        assert twin.memory_efficient == "exact"
        assert twin.weight is not norm.weight
        torch.testing.assert_close(twin(x), norm(x), rtol=0, atol=0)
    assert copy.deepcopy(norm).bfloat16()(x.bfloat16()).dtype == torch.bfloat16
    assert copy.deepcopy(norm).to("meta").weight.is_meta
    assert copy.deepcopy(norm)(x).grad_fn is not None


@pytest.mark.parametrize("memory_efficient", MODES)
def test_either_parameter_may_be_missing(memory_efficient):
    torch.manual_seed(0)
    x, weight, bias = torch.randn(4, 8), torch.randn(8), torch.randn(8)
    for given in ((weight, bias), (weight, None), (None, bias), (None, None)):
        want = torch.nn.functional.layer_norm(x, (8,), *given, 1e-6)
        torch.testing.assert_close(nn.fused_layer_norm_affine(x, *given, 8, memory_efficient=memory_efficient), want)
    norm = nn.FusedLayerNorm(8, memory_efficient=memory_efficient, bias=False)
    assert list(norm.state_dict()) == ["weight"]
    assert norm.extra_repr() == torch.nn.LayerNorm(8, bias=False).extra_repr()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_rms_norm_without_eps_is_torch_s(dtype):
    x = torch.full((2, 16), 1e-8 if dtype == torch.float64 else 2e-4, dtype=dtype)
    got, want = nn.FusedRMSNorm(16, eps=None, dtype=dtype)(x), torch.nn.RMSNorm(16, dtype=dtype)(x)
    torch.testing.assert_close(got, want)
    assert got.float().mean() < 0.6  # this eps is large beside x²


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("memory_efficient", MODES)
def test_mixed_dtypes_give_the_parameters_dtype_and_each_its_own_gradient(half, memory_efficient):
    torch.manual_seed(0)
    for input_dtype, dtype in ((half, torch.float32), (torch.float32, half)):
        x = torch.randn(4, 8, dtype=input_dtype, requires_grad=True)
        for norm in (nn.MixedFusedLayerNorm(8), nn.MixedFusedRMSNorm(8), nn.FusedLayerNorm(8), nn.FusedRMSNorm(8)):
            norm.to(dtype).memory_efficient = memory_efficient
            output = norm(x)
            assert output.dtype == dtype
            x.grad = None
            output.sum().backward()
            assert x.grad.dtype == input_dtype
            assert {parameter.grad.dtype for parameter in norm.parameters()} == {dtype}
            plain = torch.nn.functional.layer_norm if hasattr(norm, "bias") else torch.nn.functional.rms_norm
            torch.testing.assert_close(output.double(), plain(x.double(), (8,), eps=1e-5), atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("kind", [nn.MixedFusedLayerNorm, nn.MixedFusedRMSNorm])
def test_mixed_modules_warn_of_elementwise_affine_as_apex_does(kind):
    with pytest.warns(UserWarning, match=f"{kind.__name__} does not support `elementwise_affine` argument"):
        assert kind(3, elementwise_affine=True).weight is not None
    with (
        pytest.warns(UserWarning, match="does not support"),
        pytest.raises(RuntimeError, match=f"{kind.__name__} does not support `elementwise_affine = False`"),
    ):
        kind(3, elementwise_affine=False)


def test_without_torch_the_error_says_what_to_install():
    code = "import sys; sys.modules['torch'] = None; import normlab; import normlab.nn"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ImportError: normlab.nn needs PyTorch, which is not installed: pip install 'normlab[torch]'" in run.stderr


def test_a_torch_that_does_not_load_says_so_itself(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.13: cannot open shared object file')")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import normlab.nn"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stderr.endswith("ImportError: libcudart.so.13: cannot open shared object file\n")


@pytest.mark.parametrize("engine", ["auto", "simulator"])
@pytest.mark.parametrize("memory_efficient", [False, True, "exact"])
def test_meta_tensors_have_shapes_and_dtypes_alone(memory_efficient, engine):
    norm = nn.FusedLayerNorm(4, memory_efficient=memory_efficient, device="meta", dtype=torch.bfloat16)
    x = torch.empty(2, 3, 4, device="meta", dtype=torch.bfloat16, requires_grad=True)
    with nn.engine(engine):
        output = norm(x)
    assert (output.shape, output.dtype, output.device.type) == (x.shape, x.dtype, "meta")
    output.sum().backward()
    assert x.grad.shape == x.shape
    assert norm.weight.grad.shape == (4,)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("memory_efficient", MODES)
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_nested_tensors_give_what_pytorch_s_norms_give(layout, memory_efficient):
    nested = torch.nested.nested_tensor([torch.randn(3, 8), torch.randn(2, 8)], layout=layout)
    theirs, ours = torch.nn.LayerNorm(8), nn.FusedLayerNorm(8, memory_efficient=memory_efficient)
    for want, got in zip(theirs(nested).unbind(), ours(nested).unbind(), strict=True):
        torch.testing.assert_close(got, want)


def test_a_gradient_of_the_bias_is_a_tensor_of_its_own():
    """A single row: the sum over the rows is the row."""
    norm = torch.compile(nn.FusedLayerNorm(4, memory_efficient=True), backend="aot_eager", fullgraph=True)
    torch.nn.init.zeros_(norm.weight)
    norm(torch.randn(4)).backward(torch.ones(4))
    assert torch.equal(norm.bias.grad, torch.ones(4))


def test_the_default_device_does_not_matter():
    x, bias = torch.randn(3, 8, requires_grad=True), torch.full((8,), 20.0, requires_grad=True)
    with torch.device("meta"):
        output = nn.layer_norm(x, 8, None, bias, 1e-5, "exact")
        output.sum().backward()
    assert x.grad.device == bias.grad.device == x.device
