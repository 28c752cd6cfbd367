"""Who looks at a call from outside: `__torch_function__`, torch.fx, TorchScript, autocast and inference mode."""

import copy
import io
import pickle
import warnings

import pytest
import torch
from draws import paired
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Tracer, symbolic_trace
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from normlab import nn

ONES, ZEROS = torch.ones(4), torch.zeros(4)
CALLS = {
    "batch": lambda library, x, w: library.batch_norm(x, ZEROS.clone(), ONES.clone(), w, None, True),
    "batch evaluation": lambda library, x, w: library.batch_norm(x, ZEROS, ONES, weight=w, bias=w),
    "instance": lambda library, x, w: library.instance_norm(x, weight=w),
    "instance tracked": lambda library, x, w: library.instance_norm(x, ZEROS.clone(), ONES.clone(), w, momentum=0.3),
    "group": lambda library, x, w: library.group_norm(x, num_groups=2, weight=w, eps=1e-3),
}
MODULES = {
    "BatchNorm2d": lambda library: library.BatchNorm2d(4),
    "BatchNorm2d, an average": lambda library: library.BatchNorm2d(4, momentum=None),
    "InstanceNorm2d": lambda library: library.InstanceNorm2d(4, affine=True, track_running_stats=True),
    "InstanceNorm2d, an average": lambda library: library.InstanceNorm2d(4, momentum=None, track_running_stats=True),
    "GroupNorm": lambda library: library.GroupNorm(2, 4),
}
X, W = torch.randn(2, 4, 3, 3), torch.randn(4)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


class Seen(torch.Tensor):
    """A tensor that writes down what is called with it."""

    calls: list = []  # noqa: RUF012  # one for all

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.calls.append(function)
        return super().__torch_function__(function, types, args, kwargs or {})


@pytest.mark.parametrize("name", CALLS)
def test_a_tensor_with_torch_function_sees_the_public_function(name):
    Seen.calls.clear()
    output = CALLS[name](nn, X.as_subclass(Seen), W)
    assert type(output) is Seen
    assert Seen.calls == [getattr(nn, f"{name.split()[0]}_norm")]
    torch.testing.assert_close(output.as_subclass(torch.Tensor), CALLS[name](nn, X, W))
    CALLS[name](nn, X, W.as_subclass(Seen))
    assert len(Seen.calls) == 2


@pytest.mark.parametrize("name", CALLS)
def test_a_mode_sees_it_too(name):
    seen = []

    class Mode(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    with Mode():
        output = CALLS[name](nn, X, W)
    torch.testing.assert_close(output, CALLS[name](nn, X, W))
    assert seen.count(getattr(nn, f"{name.split()[0]}_norm")) == 1


@pytest.mark.parametrize("name", CALLS)
def test_fx_has_a_function_as_one_node(name):
    def function(x, w):
        return torch.relu(CALLS[name](nn, x, w)) + 1

    traced = symbolic_trace(function)
    public = getattr(nn, f"{name.split()[0]}_norm")
    assert public in [node.target for node in traced.graph.nodes if node.op == "call_function"]
    for run in (traced, pickle.loads(pickle.dumps(traced))):
        torch.testing.assert_close(run(X, W), function(X, W))


class EachOperation(Tracer):
    """Looks inside modules of torch.nn, too, except for convolutions."""

    def is_leaf_module(self, module, path):
        return isinstance(module, torch.nn.Conv2d)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", MODULES)
def test_fx_has_a_module_as_one_node_which_counts_batches(name, training):
    model = torch.nn.Sequential(torch.nn.Conv2d(4, 4, 1), MODULES[name](nn), torch.nn.ReLU()).train(training)
    traced = symbolic_trace(copy.deepcopy(model))
    assert [node.op for node in traced.graph.nodes] == ["placeholder", *["call_module"] * 3, "output"]
    for _ in range(3):
        torch.testing.assert_close(traced(X), model(X))
        torch.testing.assert_close(traced.state_dict(), model.state_dict())


@pytest.mark.parametrize("name", MODULES)
def test_fx_traces_a_norm_by_itself_and_inside(name):
    norm = MODULES[name](nn).eval()
    torch.testing.assert_close(symbolic_trace(norm)(X), norm(X))
    model = torch.nn.Sequential(torch.nn.Conv2d(4, 4, 1), norm)
    graph = EachOperation().trace(model)
    assert [node.op for node in graph.nodes if node.op != "get_attr"] == [
        "placeholder", "call_module", "call_function", "output"
    ]  # fmt: skip
    torch.testing.assert_close(torch.fx.GraphModule(model, graph)(X), model(X))


def test_fx_quantisation_traces_a_model():
    quantize_fx = pytest.importorskip("torch.ao.quantization.quantize_fx")
    model = torch.nn.Sequential(torch.nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.GroupNorm(2, 4)).eval()
    with warnings.catch_warnings(action="ignore"):
        mapping = torch.ao.quantization.get_default_qconfig_mapping()
        prepared = quantize_fx.prepare_fx(model, mapping, (X,))
    torch.testing.assert_close(prepared(X), model(X))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", MODULES)
def test_torch_script_compiles_and_saves_a_module_which_counts_batches(name, training):
    norm = MODULES[name](nn).train(training)
    model = torch.nn.Sequential(copy.deepcopy(norm), torch.nn.ReLU())
    with warnings.catch_warnings(action="ignore"):
        scripted, file = torch.jit.script(model), io.BytesIO()
        torch.jit.save(scripted, file)
        file.seek(0)
        loaded = torch.jit.load(file)
    assert type(model[0]) is type(norm)
    for _ in range(2):
        torch.testing.assert_close(loaded(X), torch.relu(norm(X)))
        torch.testing.assert_close(list(loaded.buffers()), list(norm.buffers()))


def test_torch_script_compiles_functions():
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = nn.batch_norm(x, None, None, w, training=True)
        return nn.group_norm(y, 2, w) + nn.instance_norm(x, weight=w)

    with warnings.catch_warnings(action="ignore"):
        scripted = torch.jit.script(function)
    torch.testing.assert_close(scripted(X, W), function(X, W))


@pytest.mark.parametrize(
    ("name", "dtype", "device"), paired(CALLS, [torch.float32, torch.bfloat16, torch.float64], ["cpu", "cuda"])
)
def test_autocast_has_torch_s_dtype(name, dtype, device):
    """A CUDA tensor is a fake one; PyTorch's rule is read from its dispatcher: has it a kernel for autocast?"""
    kind = name.split()[0]
    key = "AutocastCPU" if device == "cpu" else "AutocastCUDA"
    cast = torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{kind}_norm", key)
    assert cast == (kind == "group" and device == "cuda")
    wanted = torch.float32 if cast and dtype == torch.bfloat16 else dtype
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    was = torch.is_autocast_enabled(device)
    torch.set_autocast_enabled(device, True)  # torch.autocast would not, where there is no GPU
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            x, w = torch.empty(2, 4, 3, 3, dtype=dtype, device=device), torch.empty(4, dtype=wide, device=device)
            running = [torch.empty(4, dtype=wide, device=device) for _ in range(2)] if kind == "batch" else [None] * 2
            if kind == "group":
                output = nn.group_norm(x, 2, w)
            else:
                output = getattr(nn, f"{kind}_norm")(x, *running, w)
        assert output.dtype == wanted
        if device == "cpu":
            with nn.engine("simulator"):
                assert nn.group_norm(torch.randn(1, 2, 2).to(dtype), 1).dtype == wanted
    finally:
        torch.set_autocast_enabled(device, was)


@pytest.mark.parametrize(("name", "engine", "training"), paired(MODULES, ["auto", "simulator"], [True, False]))
def test_inference_mode_is_torch_s(name, engine, training):
    results = []
    for library in (nn, torch.nn):
        module = MODULES[name](library).train(training)
        with nn.engine(engine):
            with torch.inference_mode():
                inside = [module(X), module(X + 1)]
                made, own = X * 2, MODULES[name](library).train(training)
                inside.append(own(made))
            assert all(one.is_inference() for one in inside)
            with torch.no_grad():
                outside = module(made)
            module.requires_grad_(False)
            outside += module(made)
            assert not outside.is_inference()
            if not training:  # a number of batches that was made in inference mode cannot change outside
                with torch.no_grad():
                    inside.append(own(X))
            elif name.startswith("Batch"):
                with torch.no_grad(), pytest.raises(RuntimeError, match="inference tensor"):
                    own(X)
            leaf = X.clone().requires_grad_()
            module(leaf).square().sum().backward()  # what inference mode has updated is no inference tensor
        results.append([*inside, outside, leaf.grad, *module.buffers()])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("engine", ["auto", "simulator"])
@pytest.mark.parametrize("tracked", [True, False])
@pytest.mark.parametrize("name", ["BatchNorm1d", "InstanceNorm1d"])
def test_a_momentum_of_none_is_torch_s(name, tracked, engine):
    mine, theirs = (getattr(one, name)(4, momentum=None, track_running_stats=tracked) for one in (nn, torch.nn))
    for number in range(4):
        x = torch.randn(2, 4, 3) + number
        with nn.engine(engine):
            output = mine(x)
        torch.testing.assert_close(output, theirs(x))
        torch.testing.assert_close(mine.state_dict(), theirs.state_dict())
    running = [ZEROS.clone(), ONES.clone()]
    for library in (nn, functional):
        for call in (library.batch_norm, library.instance_norm):
            with pytest.raises(TypeError, match="argument 'momentum'"):
                call(X, *running, momentum=None)


@pytest.mark.parametrize("name", CALLS)
def test_a_fake_tensor_mode_needs_no_shape_env(name):
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert mode.shape_env is None
        x, w = torch.empty(2, 4, 3, 3, requires_grad=True), torch.empty(4, requires_grad=True)
        output = CALLS[name](nn, x, w)
        output.sum().backward()
        assert (x.grad.shape, w.grad.shape, output.shape) == (x.shape, w.shape, x.shape)
