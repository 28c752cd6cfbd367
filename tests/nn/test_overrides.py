"""`__torch_function__`: torch.fx, modes and tensors of the user's own see these norms as they see torch.nn's."""

import copy
import importlib
import inspect
import pickle

import pytest
import torch
from nn.norms import MODES
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import symbolic_trace
from torch.overrides import TorchFunctionMode

from normlab import nn

MODULES = (nn.FusedLayerNorm, nn.FusedRMSNorm, nn.MixedFusedLayerNorm, nn.MixedFusedRMSNorm, nn.LayerNorm, nn.RMSNorm)
FUNCTIONS = (
    nn.layer_norm,
    nn.rms_norm,
    nn.fused_layer_norm,
    nn.fused_layer_norm_affine,
    nn.mixed_dtype_fused_layer_norm_affine,
    nn.fused_rms_norm,
    nn.fused_rms_norm_affine,
    nn.mixed_dtype_fused_rms_norm_affine,
)
every_function = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
every_module = pytest.mark.parametrize("kind", MODULES, ids=lambda kind: kind.__name__)


def imported(name: str):
    """A module that no test extra has, if it is there. A torchvision for another PyTorch raises RuntimeError."""
    try:
        return importlib.import_module(name)
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"needs {name}: {error}")


class Called(torch.nn.Module):
    """A function of parameters of its own, after a linear layer."""

    def __init__(self, function, **options):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        for name in {"weight", "bias"} & inspect.signature(function).parameters.keys():
            self.register_parameter(name, torch.nn.Parameter(torch.randn(8)))
        self.function, self.options = function, options

    def forward(self, x):
        """The function's norm."""
        given = {name: getattr(self, name) for name in ("weight", "bias") if hasattr(self, name)}
        return self.function(self.linear(x), normalized_shape=x.shape[-1:], **given, **self.options)


def nodes(graph, op: str) -> list:
    return [node for node in graph.graph.nodes if node.op == op]


def hold(graph, model) -> None:
    """Assert that a graph computes what the model does, also pickled and unpickled: output and gradients."""
    x, dy = torch.randn(2, 3, 8)
    want = model(x)
    wanted = torch.autograd.grad(want, list(model.parameters()), dy)
    for one in (graph, pickle.loads(pickle.dumps(graph))):
        got = one(x)
        torch.testing.assert_close(got, want, rtol=0, atol=0)
        parameters = [dict(one.named_parameters())[name] for name, _ in model.named_parameters()]
        torch.testing.assert_close(torch.autograd.grad(got, parameters, dy), wanted, rtol=0, atol=0)


@pytest.mark.parametrize("memory_efficient", MODES)
@every_function
def test_a_function_is_a_node_that_calls_it_with_what_it_was_called_with(function, memory_efficient):
    torch.manual_seed(0)
    model = Called(function, memory_efficient=memory_efficient)
    graph = symbolic_trace(model)
    (node,) = [node for node in nodes(graph, "call_function") if "norm" in node.name]
    assert node.target is function
    assert node.kwargs["memory_efficient"] == memory_efficient
    assert not nodes(graph, "call_method")
    hold(graph, model)


@pytest.mark.parametrize("memory_efficient", MODES)
@every_module
def test_a_module_is_a_leaf_as_torch_nn_s_norms_are(kind, memory_efficient):
    torch.manual_seed(0)
    norm = kind(8)
    norm.memory_efficient = memory_efficient
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), norm, torch.nn.Linear(8, 8))
    graph = symbolic_trace(model)
    assert [node.target for node in nodes(graph, "call_module")] == ["0", "1", "2"]
    assert type(graph.get_submodule("1")) is kind
    hold(graph, model)


class Doubled(nn.FusedLayerNorm):
    """A norm with more to do than its base class."""

    def forward(self, input):
        """Twice the norm."""
        return 2 * super().forward(input)


def hooked(norm):
    norm.register_forward_hook(lambda module, args, output: 2 * output)
    return norm


def with_another_forward(norm):
    forward = norm.forward
    norm.forward = lambda input: 2 * forward(input)
    return norm


@pytest.mark.parametrize(
    "made",
    [lambda: Doubled(8), lambda: hooked(nn.FusedLayerNorm(8)), lambda: with_another_forward(nn.FusedRMSNorm(8))],
    ids=["subclass", "hook", "forward"],
)
def test_what_a_call_does_beside_the_norm_happens_once(made):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), made())
    graph = symbolic_trace(model)
    assert [node.target for node in nodes(graph, "call_module")] == ["0"]
    x = torch.randn(3, 8)
    torch.testing.assert_close(graph(x), model(x), rtol=0, atol=0)


@every_module
def test_a_norm_that_is_the_graph_itself_is_a_node_in_it(kind):
    norm = kind(8).bfloat16()
    graph = symbolic_trace(norm)
    assert [node.target for node in nodes(graph, "call_function")] == [getattr(nn, function_of(kind))]
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(3, 8).to(dtype)
        torch.testing.assert_close(graph(x), norm(x), rtol=0, atol=0)


def function_of(kind) -> str:
    return "rms_norm" if issubclass(kind, torch.nn.RMSNorm) else "layer_norm"


class Through(torch.fx.Tracer):
    """A tracer that takes no module for a leaf."""

    def is_leaf_module(self, *_):
        """Never."""
        return False


def test_a_tracer_that_goes_through_torch_nn_s_norms_goes_through_these():
    graph = Through().trace(torch.nn.Sequential(torch.nn.LayerNorm(8), nn.FusedLayerNorm(8)))
    assert [node.op for node in graph.nodes if "norm" in str(node.target)] == ["call_function"] * 2


def test_torchvision_s_feature_extraction_finds_a_norm():
    feature_extraction = imported("torchvision.models.feature_extraction")
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), nn.FusedRMSNorm(8, memory_efficient="exact"))
    x = torch.randn(3, 8)
    found = feature_extraction.create_feature_extractor(model, {"1": "norm"})(x)
    torch.testing.assert_close(found["norm"], model(x))


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "swin_tiny_patch4_window7_224"])
def test_models_of_timm_are_traced_with_their_norms_replaced(name):
    timm = imported("timm")
    torch.manual_seed(0)
    small = {"vit_tiny_patch16_224": {"depth": 2, "embed_dim": 24, "num_heads": 3}, "swin_tiny_patch4_window7_224": {}}
    if name.startswith("swin"):
        small[name] = {"depths": (1, 1), "embed_dim": 24, "num_heads": (3, 6)}
    model = timm.create_model(name, pretrained=False, num_classes=10, **small[name]).eval()
    x = torch.randn(1, 3, 224, 224)
    want = model(x)
    replaced = nn.replace_norms(model)
    graph = symbolic_trace(model)
    modules = [graph.get_submodule(node.target) for node in nodes(graph, "call_module")]
    leaves = [module for module in modules if isinstance(module, nn.FusedLayerNorm)]
    calls = [node for node in nodes(graph, "call_function") if node.target is nn.layer_norm]  # of timm's own classes
    assert len(leaves) + len(calls) == len(replaced) > 0
    torch.testing.assert_close(graph(x), want, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_fx_quantisation_leaves_the_norms_and_quantises_around_them():
    quantize_fx = pytest.importorskip("torch.ao.quantization.quantize_fx")
    from torch.ao.quantization import get_default_qconfig_mapping

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), nn.FusedLayerNorm(8), torch.nn.Linear(8, 8)).eval()
    x = torch.randn(4, 8)
    prepared = quantize_fx.prepare_fx(copy.deepcopy(model), get_default_qconfig_mapping(), (x,))
    prepared(x)
    quantised = quantize_fx.convert_fx(prepared)
    assert type(quantised.get_submodule("1")) is nn.FusedLayerNorm
    assert type(quantised.get_submodule("2")) is not torch.nn.Linear
    torch.testing.assert_close(quantised(x), model(x), rtol=0.2, atol=0.2)


class Noted(torch.Tensor):
    """A tensor that notes by which functions it is used."""

    seen: list = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        """Note, and go on."""
        cls.seen.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("which", ["input", "weight"])
@pytest.mark.parametrize("memory_efficient", MODES)
@every_function
def test_a_tensor_of_the_user_s_own_sees_the_call_and_gets_one_of_its_own(function, memory_efficient, which):
    taken = inspect.signature(function).parameters
    if which not in taken:
        return
    tensors = {"input": torch.randn(3, 8), "weight": torch.randn(8), "bias": torch.randn(8)}
    given = {name: tensor for name, tensor in tensors.items() if name in taken}
    options = {"normalized_shape": 8, "memory_efficient": memory_efficient}
    want = function(**given, **options)
    given[which] = given[which].as_subclass(Noted).requires_grad_()
    Noted.seen.clear()
    output = function(**given, **options)
    assert Noted.seen[:1] == [function]
    assert type(output) is Noted
    torch.testing.assert_close(torch.Tensor(output.detach()), want)
    output.sum().backward()
    assert given[which].grad is not None


class Answer(TorchFunctionMode):
    """A mode that answers calls of some functions itself."""

    def __init__(self, functions):
        super().__init__()
        self.functions, self.calls = functions, []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Answer "seen"."""
        if func in self.functions:
            self.calls.append((func, args, kwargs))
            return "seen"
        return func(*args, **(kwargs or {}))


@every_function
def test_a_mode_sees_the_call_and_its_answer_is_what_comes_back(function):
    x, weight = torch.randn(3, 8), torch.randn(8)
    given = {name: weight for name in ("weight", "bias") if name in inspect.signature(function).parameters}
    with Answer(FUNCTIONS) as mode:
        assert function(x, normalized_shape=8, **given) == "seen"
    ((called, args, kwargs),) = mode.calls
    assert called is function
    torch.testing.assert_close(called(*args, **kwargs), function(x, normalized_shape=8, **given))


@every_module
def test_a_mode_sees_a_module_s_function_and_can_call_it_itself(kind):
    norm, x = kind(8).bfloat16(), torch.randn(3, 8)
    with Answer([getattr(nn, function_of(kind))]) as mode:
        assert norm(x) == "seen"
    ((called, args, kwargs),) = mode.calls
    torch.testing.assert_close(called(*args, **kwargs), norm(x), rtol=0, atol=0)  # dtype included


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("memory_efficient", MODES)
def test_masked_tensors_get_what_torch_s_norms_give_them(memory_efficient):
    masked = torch.masked.masked_tensor(torch.randn(3, 8), torch.ones(3, 8, dtype=torch.bool))  # torch takes no others
    norm = nn.FusedRMSNorm(8, memory_efficient=memory_efficient, elementwise_affine=False)
    want = torch.nn.functional.rms_norm(masked, (8,), None, norm.eps)
    got = norm(masked)
    assert type(got) is type(want)
    torch.testing.assert_close(got.get_data(), want.get_data())
    with pytest.raises(TypeError, match="native_layer_norm"):  # which torch has none of
        nn.layer_norm(masked, 8, memory_efficient=memory_efficient)


@pytest.mark.parametrize("memory_efficient", MODES)
@every_module
def test_fake_tensors_need_no_shape_env(kind, memory_efficient):
    with FakeTensorMode():
        norm = kind(8)
        norm.memory_efficient = memory_efficient
        x = torch.empty(4, 3, 8, requires_grad=True)
        output = norm(x)
        output.sum().backward()
    assert output.shape == x.grad.shape == x.shape
    assert norm.weight.grad.shape == (8,)


@pytest.mark.filterwarnings("ignore:`torch.jit")
@every_module
def test_torch_jit_trace_works_and_script_says_what_to_use(kind):
    norm, (x, other) = kind(8), torch.randn(2, 3, 8)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), norm)
    torch.testing.assert_close(torch.jit.trace(model, x)(other), model(other))
    for scripted in (norm, model):
        with pytest.raises(NotImplementedError, match=f"cannot compile {kind.__name__}: use torch.jit.trace, or"):
            torch.jit.script(scripted)
