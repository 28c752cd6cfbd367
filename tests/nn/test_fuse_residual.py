"""replace_norms(fuse_residual=True): layers whose additions and norms are one call, and layers that stay."""

import copy
import functools
import pickle

import pytest
import torch
from draws import sampled
from nn.decoder_layers import (
    AddingAParameter,
    Attention,
    GatedMLP,
    GemmaLayer,
    GemmaRMSNorm,
    LlamaLayer,
    LlamaRMSNorm,
    LoopLayer,
    ManyModulesLayer,
    MixtureLayer,
    PostNormLayer,
    PreLayerNormLayer,
    PrivateNameLayer,
    RefusingSubclasses,
    WithACallOfItsOwn,
    WritingIntoTheResidual,
)
from torch import nn as torch_nn
from torch._dynamo import lookup_backend
from torch.utils.checkpoint import checkpoint

from normlab import nn
from normlab.nn import replace_norms
from normlab.nn.add_norm.saving import gamma_of
from normlab.nn.stream import calls, compare, layers

MODES = [False, True, "exact"]
LAYERS = {
    LlamaLayer: (("input_layernorm", "passed"), ("post_attention_layernorm", "added")),
    PreLayerNormLayer: (("ln_1", "passed"), ("ln_2", "added")),
    GemmaLayer: (("input_layernorm", "passed"), ("pre_feedforward_layernorm", "added")),
    MixtureLayer: (("post_attention_layernorm", "added"),),
    WithACallOfItsOwn: (("input_layernorm", "passed"), ("post_attention_layernorm", "added")),
    ManyModulesLayer: (("ln_1", "passed"), ("ln_2", "added")),
    LoopLayer: (("ln_1", "added"),),
    PrivateNameLayer: (("ln_1", "passed"),),
}


def drawn(kind, size=8, layers=2):
    """A model of layers with random parameters."""
    torch.manual_seed(0)
    model = torch_nn.Sequential(*(kind(size) for _ in range(layers)))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "ln_" in name:
                parameter.uniform_(0.5, 1.5)
    return model


def drawn_input(size=8, dtype=torch.float32):
    return torch.randn(2, 5, size, generator=torch.Generator().manual_seed(1)).to(dtype)


def results(model, x, call=None):
    """The output, the gradient of x and those of all parameters."""
    model.zero_grad()
    x = x.detach().clone().requires_grad_()
    y = (model if call is None else call)(x)
    (y * torch.linspace(-1, 2, y.numel()).reshape(y.shape).to(y)).sum().backward()
    return [y.detach(), x.grad, *(one.grad for one in model.parameters())]


def close(got, want, rtol=1e-4, atol=1e-5):
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol)


def fused_calls(y):
    """How many calls of fused layers are in the graph of a result."""
    waiting, seen = [y.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    return sum(getattr(node, "past", None) is True for node in seen)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", LAYERS, ids=lambda kind: kind.__name__)
def test_a_fused_layer_has_the_results_and_gradients_of_the_layer_before(kind, mode):
    model, x = drawn(kind), drawn_input()
    old, keys = copy.deepcopy(model), list(model.state_dict())
    parameters = list(model.parameters())
    report = replace_norms(model, mode, fuse_residual=True)
    assert report.fused == [("0", kind, LAYERS[kind]), ("1", kind, LAYERS[kind])]
    assert [name for name, *_ in report.unfused] == []
    assert "2 layers fused" in str(report)
    assert list(model.state_dict()) == keys
    assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
    assert isinstance(model[0], kind)
    for training in (True, False):
        close(results(model.train(training), x), results(old.train(training), x))
    assert fused_calls(model(x)) == 2 * len(LAYERS[kind]) * (3 if kind is LoopLayer else 1)
    with torch.no_grad():
        close(model(x), old(x))


@pytest.mark.parametrize("kind", [LlamaLayer, GemmaLayer], ids=lambda kind: kind.__name__)
def test_copies_and_pickles_of_fused_layers_are_fused(kind):
    model, x = drawn(kind), drawn_input()
    replace_norms(model, fuse_residual=True)
    want = results(model, x)
    for other in (copy.deepcopy(model), copy.copy(model), pickle.loads(pickle.dumps(model))):
        close(results(other, x), want, 0, 0)
        assert fused_calls(other(x)) == 4
    old = drawn(kind)
    old.load_state_dict(model.state_dict())
    close(results(old, x), want)


def test_a_pickle_of_a_fused_layer_is_the_layer_before_where_its_source_is_not_at_hand(monkeypatch):
    model, x = drawn(LlamaLayer), drawn_input()
    old = copy.deepcopy(model)
    replace_norms(model, fuse_residual=True)
    saved = pickle.dumps(model)
    layers.fused_class.cache_clear()
    monkeypatch.setattr(layers, "rewritten", lambda *_: "the source of its forward is not at hand")
    other = pickle.loads(saved)
    layers.fused_class.cache_clear()
    assert type(other[0]) is LlamaLayer
    close(results(other, x), results(old, x))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reentrant", [True, False])
def test_a_fused_layer_may_be_checkpointed(mode, reentrant):
    model, x = drawn(LlamaLayer), drawn_input()
    old = copy.deepcopy(model)
    replace_norms(model, mode, fuse_residual=True)

    def checkpointed(x):
        for layer in model:
            x = checkpoint(layer, x, use_reentrant=reentrant)
        return x

    close(results(model, x, checkpointed), results(old, x))


@pytest.mark.parametrize(("kind", "mode"), sampled([LlamaLayer, PreLayerNormLayer, GemmaLayer], MODES))
def test_a_fused_model_compiles_as_one_graph_with_a_call_for_each_norm(kind, mode):
    model, x = drawn(kind), drawn_input()
    old = copy.deepcopy(model)
    replace_norms(model, mode, fuse_residual=True)
    graphs = []

    def backend(graph, given):
        graphs.append(sum("autograd_function_apply" in str(node.target) for node in graph.graph.nodes))
        return lookup_backend("aot_eager")(graph, given)

    torch.compiler.reset()
    close(results(model, x, torch.compile(model, fullgraph=True, backend=backend)), results(old, x))
    torch.compiler.reset()
    norms = [one for one in model[0].children() if isinstance(one, (nn.FusedLayerNorm, nn.FusedRMSNorm))]
    assert graphs == [2 * len(norms)]


@pytest.mark.parametrize("fuse_residual", [False, True])
def test_norms_with_an_offset_compile_with_dynamic_shapes(fuse_residual):
    model, x = drawn(GemmaLayer), drawn_input()
    old = copy.deepcopy(model)
    replace_norms(model, fuse_residual=fuse_residual)
    torch.compiler.reset()
    close(results(model, x, torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")), results(old, x))
    torch.compiler.reset()


def test_a_fused_model_is_exported_and_transformed_like_the_model_before():
    model, x = drawn(LlamaLayer), drawn_input()
    old = copy.deepcopy(model)
    replace_norms(model, fuse_residual=True)
    close(torch.export.export(model, (x,)).module()(x), old(x))
    parameters = dict(model.named_parameters())

    def loss(given, one):
        return torch.func.functional_call(one, given, x).square().mean()

    got, want = (torch.func.grad(loss)(parameters, one) for one in (model, old))
    close(got, want)
    close(torch.func.vmap(model)(x.expand(3, *x.shape)), old(x).expand(3, *x.shape))


def test_second_derivatives_go_through_fused_layers():
    model, x = drawn(LlamaLayer).double(), drawn_input(dtype=torch.float64)
    old = copy.deepcopy(model)
    replace_norms(model, fuse_residual=True)
    found = []
    for one in (model, old):
        leaf = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(one(leaf).square().sum(), leaf, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), [leaf, *one.parameters()]))
    close(found[0], found[1], 1e-9, 1e-9)


@pytest.mark.parametrize(("kind", "mode"), sampled([LlamaLayer, PreLayerNormLayer, GemmaLayer], MODES))
def test_fused_layers_run_the_kernels(kind, mode):
    model, x = drawn(kind, layers=1), drawn_input()
    old = copy.deepcopy(model)
    replace_norms(model, mode, fuse_residual=True)
    with nn.engine("simulator"):
        got = results(model, x)
    close(got, results(old, x), 1e-4, 1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_fused_layers_keep_dtypes_of_halves_and_of_autocast(dtype):
    for kind in (LlamaLayer, PreLayerNormLayer, GemmaLayer):
        model, x = drawn(kind), drawn_input()
        old = copy.deepcopy(model)
        replace_norms(model, fuse_residual=True)
        with torch.autocast("cpu", dtype):
            got, want = results(model, x), results(old, x)
        assert [one.dtype for one in got] == [one.dtype for one in want]
        close(got, want, 5e-2, 5e-2)
        got, want = (results(one.to(dtype), x.to(dtype)) for one in (model, old))
        assert [one.dtype for one in got] == [one.dtype for one in want]
        close(got, want, 6e-2, 1.5e-1)


@pytest.mark.parametrize("kind", [nn.FusedRMSNorm, nn.FusedLayerNorm])
def test_norms_of_apex_s_names_follow_autocast_in_a_fused_layer(kind):
    norm, x = kind(8), drawn_input()
    with torch.autocast("cpu", torch.bfloat16):
        output, total = calls.added(norm, x, x.flip(0))
        passed, stream = calls.passed(norm, x)
        assert [one.dtype for one in (output, passed)] == [norm(x).dtype] * 2 == [torch.bfloat16] * 2
        assert [one.dtype for one in (total, stream)] == [torch.float32] * 2


@pytest.mark.parametrize("dtypes", [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)])
def test_a_sum_of_two_dtypes_has_the_wider_one_wherever_it_stands(dtypes):
    norm = LlamaRMSNorm(8)
    model = torch_nn.Sequential(norm)
    replace_norms(model)
    left, right = (drawn_input(dtype=dtype).requires_grad_() for dtype in dtypes)
    output, total = calls.added(model[0], left, right)
    assert total.dtype == torch.float32
    assert fused_calls(output) == 1
    close([output, total], [norm(left + right), left + right])
    (output + total).sum().backward()
    assert [left.grad.dtype, right.grad.dtype] == list(dtypes)


def test_hooks_of_a_norm_go_on_being_called_in_a_fused_layer():
    model, x = drawn(LlamaLayer), drawn_input()
    old = copy.deepcopy(model)
    replace_norms(model, fuse_residual=True)
    called = []
    model[0].post_attention_layernorm.register_forward_hook(lambda *_: called.append("forward"))
    model[1].input_layernorm.register_full_backward_hook(lambda *_: called.append("backward"))
    close(results(model, x), results(old, x))
    assert sorted(called) == ["backward", "forward"]
    assert fused_calls(model(x)) == 2
    called.clear()
    handle = torch_nn.modules.module.register_module_forward_hook(lambda *_: called.append("any"))
    close(results(model, x), results(old, x))
    handle.remove()
    assert called.count("any") == sum(1 for _ in model.modules()) + sum(1 for _ in old.modules())


def test_a_default_device_leaves_layers_fused_and_another_mode_sees_the_norms():
    model, x = drawn(LlamaLayer), drawn_input()
    replace_norms(model, fuse_residual=True)
    with torch.device("cpu"):
        assert fused_calls(model(x)) == 4
    seen = []

    class Watching(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    with Watching():
        assert fused_calls(model(x)) == 0
    assert seen.count(nn.rms_norm) == 4


def test_layers_that_the_fused_forward_would_change_stay_as_they_are():
    for kind, reason in {
        WritingIntoTheResidual: "it cannot be compared: RuntimeError: Output 1 of AddNorm",
        AddingAParameter: "0 of 1 additions and norms became one call",
        PostNormLayer: "its forward has no statement that adds before a norm, or keeps a norm's input",
    }.items():
        model, x = drawn(kind), drawn_input()
        old = copy.deepcopy(model)
        report = replace_norms(model, fuse_residual=True)
        assert report.fused == []
        assert [name for name, *_ in report.unfused] == ["0", "1"]
        assert report.unfused[0][2].startswith(reason)
        assert f"not fused: {reason}" in str(report)
        assert type(model[0]) is kind
        with torch.no_grad():  # writing into the residual, the layer has no backward
            close(model(x), old(x))


@pytest.mark.parametrize("call", ["added", "passed"])
@pytest.mark.parametrize("of", ["output", "gradient"])
def test_a_call_that_computes_something_else_is_seen(monkeypatch, call, of):
    right = getattr(calls, call)

    def wrong(*given):
        output, stream = right(*given)
        return output, stream * 1.001 if of == "output" else stream + (stream - stream.detach()) * 1e-3

    monkeypatch.setattr(calls, call, wrong)
    model = drawn(LlamaLayer)
    ((_, kind, why), _) = replace_norms(model, fuse_residual=True).unfused
    assert kind is LlamaLayer
    assert why.startswith(f"rewritten, {'output 0' if of == 'output' else 'the gradient of'}")
    assert type(model[0]) is LlamaLayer


def test_a_forward_of_the_layer_s_own_or_without_a_source_stays():
    size = 8

    class Local(LlamaLayer):
        def forward(self, hidden_states):
            residual = hidden_states
            hidden_states = self.input_layernorm(hidden_states)
            return residual + hidden_states * size

    made = {}
    source = "class Made(LlamaLayer):\n    def forward(self, x):\n        return self.input_layernorm(x)\n"
    exec(source, {"LlamaLayer": LlamaLayer}, made)
    own = LlamaLayer(8)
    own.forward = lambda x: x
    report = replace_norms(torch_nn.Sequential(Local(8), made["Made"](8), own), fuse_residual=True)
    assert [why for *_, why in report.unfused] == [
        "its forward is no plain function: it has variables of a scope around it",
        "the source of its forward is not at hand",
        "its forward is one of its own, not its class's",
    ]


def test_a_comparison_runs_a_layer_a_few_times_for_each_of_its_modules(monkeypatch):
    runs, right = [], compare._results
    monkeypatch.setattr(compare, "_results", lambda *given: runs.append(given) or right(*given))
    assert len(replace_norms(drawn(ManyModulesLayer), fuse_residual=True).fused) == 2
    assert len(runs) < 200  # of 3 to the power of 8 combinations


def decorated(forward):
    @functools.wraps(forward)
    def wrapper(*given):
        return forward(*given) * 2

    return wrapper


def test_a_decorated_forward_is_decorated_again_or_stays():
    def local(forward):
        return decorated(forward)

    class Decorated(LlamaLayer):
        @decorated
        def forward(self, x):
            residual = x
            x = self.input_layernorm(x)
            return residual + self.mlp(x)

    class LocallyDecorated(LlamaLayer):
        @local
        def forward(self, x):
            residual = x
            x = self.input_layernorm(x)
            return residual + self.mlp(x)

    class Wrapped(LlamaLayer):
        def forward(self, x):
            residual = x
            x = self.input_layernorm(x)
            return residual + self.mlp(x)

        forward = decorated(forward)

    model, x = torch_nn.Sequential(*(kind(8) for kind in (Decorated, LocallyDecorated, Wrapped))), drawn_input()
    old = copy.deepcopy(model)
    report = replace_norms(model, fuse_residual=True)
    assert [name for name, *_ in report.fused] == ["0"]
    assert [why for *_, why in report.unfused] == [
        "its forward's decorators cannot be applied again: NameError: name 'local' is not defined",
        "its forward is wrapped in a function that is none of its decorators",
    ]
    close(results(model, x), results(old, x))


def test_a_class_that_refuses_subclasses_stays_with_its_norms_replaced():
    model, x = drawn(RefusingSubclasses), drawn_input()
    old = copy.deepcopy(model)
    report = replace_norms(model, fuse_residual=True)
    assert [why for *_, why in report.unfused] == ["its class cannot be rewritten: ValueError: final"] * 2
    close(results(model, x), results(old, x))


def test_fusing_again_fuses_nothing_more_and_another_mode_is_taken():
    model, x = drawn(LlamaLayer), drawn_input()
    replace_norms(model, False)
    report = replace_norms(model, False, fuse_residual=True)
    assert (len(report), len(report.fused)) == (0, 2)
    kinds = [type(layer) for layer in model]
    again = replace_norms(model, True, fuse_residual=True)
    assert again.fused == report.fused
    assert [type(layer) for layer in model] == kinds
    assert len(again.switched) == 4
    assert fused_calls(model(x)) == 4


def test_layers_on_the_meta_device_are_fused_and_get_their_values_later():
    with torch.device("meta"):
        model = drawn(LlamaLayer)
        assert len(replace_norms(model, fuse_residual=True).fused) == 2
    old, x = drawn(LlamaLayer), drawn_input()
    model.load_state_dict(old.state_dict(), assign=True)
    close(results(model, x), results(old, x))


def test_comparing_draws_none_of_the_caller_s_random_numbers_and_leaves_parameters_alone():
    model = drawn(LlamaLayer)
    numbers, state = torch.get_rng_state(), copy.deepcopy(model.state_dict())
    replace_norms(model, fuse_residual=True)
    assert torch.equal(torch.get_rng_state(), numbers)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(one.grad is None for one in model.parameters())


def kept(model, x):
    """Bytes that the model's own tensors take of what autograd keeps."""
    return replace_norms(model, model[0].input_layernorm.memory_efficient, fuse_residual=True).bytes_saved(x)


def test_exact_keeps_the_output_unless_a_column_is_at_risk():
    x, size = drawn_input(64), 2 * 5 * 64 * 4
    saved = {}
    for mode in MODES:
        model = drawn(LlamaLayer, 64)
        replace_norms(model, mode, fuse_residual=True)
        saved[mode] = kept(model, x)
    assert saved[True] == saved["exact"]
    assert saved[True] - saved[False] == 3 * size  # the first norm's input is the caller's
    model = drawn(LlamaLayer, 64)
    with torch.no_grad():
        model[1].post_attention_layernorm.weight[3] = 0
    old = copy.deepcopy(model)
    replace_norms(model, "exact", fuse_residual=True)
    assert saved["exact"] - kept(model, x) == size
    close(results(model, x), results(old, x))


@pytest.mark.parametrize("compiled", [False, True])
def test_exact_gradients_are_right_where_gamma_is_0(compiled):
    kinds = ((GemmaLayer, -1.0), (PreLayerNormLayer, 0.0), (LlamaLayer, 0.0))
    for kind, weight in kinds[:2] if compiled else kinds:  # LlamaLayer's norm is GemmaLayer's with another offset
        model, x = drawn(kind), drawn_input()
        with torch.no_grad():
            for name, one in model.named_parameters():
                if "weight" in name and ("norm" in name or "ln_" in name):
                    one[2] = weight
        old = copy.deepcopy(model)
        replace_norms(model, "exact", fuse_residual=True)
        torch.compiler.reset()
        call = torch.compile(model, fullgraph=True, backend="aot_eager") if compiled else None
        close(results(model, x, call), results(old, x))
    torch.compiler.reset()


@pytest.mark.parametrize("with_residual", [False, True])
def test_a_compiled_exact_call_keeps_what_a_compiler_may_write_over(with_residual):
    """Inductor takes the memory of an operator's arguments and results for others after their last use."""
    x, residual, weight = drawn_input(), drawn_input().flip(0) if with_residual else None, torch.ones(8)
    weight[2] = 0
    found = []
    for written in (False, True):
        given, added = x.clone(), None if residual is None else residual.clone()
        output, stream, invvar, handle = torch.ops.normlab.stream_norm_held(
            given, added, weight, None, None, None, 1e-6, True, 0.0
        )
        if written:
            given.fill_(7), stream.fill_(7)
        found.append(
            torch.ops.normlab.stream_norm_held_backward(
                x.roll(1), x, output, invvar, handle, weight, None, 1e-6, True, 0.0, torch.float32
            )
        )
    close(found[1], found[0], 0, 0)


def test_gamma_is_computed_again_after_a_change_of_the_weight_and_stays_in_its_memory():
    weight = torch_nn.Parameter(torch.zeros(4, dtype=torch.bfloat16))
    gamma = gamma_of(weight, 1.0)
    version = gamma._version
    assert gamma.dtype == torch.float32
    assert gamma_of(weight, 1.0) is gamma
    assert gamma._version == version
    with torch.no_grad():
        weight.add_(2)
    assert gamma_of(weight, 1.0) is gamma
    assert gamma.tolist() == [3.0] * 4
    assert gamma._version > version
    weight.data.add_(2)  # not seen, before a step
    assert gamma_of(weight, 1.0).tolist() == [3.0] * 4
    nn.recount(torch_nn.Linear(1, 1))
    assert gamma_of(weight, 1.0).tolist() == [5.0] * 4


def test_after_a_step_one_call_computes_the_gamma_of_all_norms():
    """So that the exact mode counts the columns of all of them in one launch, and waits once."""
    weights = [torch_nn.Parameter(torch.zeros(4)) for _ in range(3)]
    gammas = [gamma_of(weight, 1.0) for weight in weights]
    steps = torch.optim.SGD(weights, lr=1.0)
    for weight in weights:
        weight.grad = torch.full((4,), -2.0)
    steps.step()
    assert [gamma[0].item() for gamma in gammas] == [1.0] * 3
    gamma_of(weights[0], 1.0)
    assert [gamma[0].item() for gamma in gammas] == [3.0] * 3
    versions = [gamma._version for gamma in gammas]
    assert [gamma_of(weight, 1.0)._version for weight in weights] == versions


def test_fused_layers_train_as_before():
    model, x = drawn(GemmaLayer), drawn_input()
    old = copy.deepcopy(model)
    replace_norms(model, fuse_residual=True)
    for one in (model, old):
        steps = torch.optim.SGD(one.parameters(), lr=1e-2)
        for _ in range(4):
            results(one, x)
            steps.step()
    close(list(model.parameters()), list(old.parameters()))


def test_modules_of_a_layer_are_those_of_the_layer_before():
    model = drawn(LlamaLayer, layers=1)
    before = {name: type(one) for name, one in model.named_modules()}
    replace_norms(model, fuse_residual=True)
    after = dict(model.named_modules())
    assert list(after) == list(before)
    assert isinstance(after["0.self_attn"], Attention)
    assert isinstance(after["0.mlp"], GatedMLP)
    assert isinstance(after["0.input_layernorm"], LlamaRMSNorm)
    assert type(after["0"]).__name__ == "LlamaLayer"
    assert not isinstance(after["0.input_layernorm"], GemmaRMSNorm)


def test_a_base_may_wrap_the_forward_of_every_class_that_is_made_of_it():
    """As the base of transformers' decoder layers does, so that the fused class is wrapped, too."""

    class Wrapping(torch_nn.Module):
        def __init_subclass__(cls):
            cls.forward = decorated(cls.forward)

    class Layer(Wrapping, LlamaLayer):
        def forward(self, x):
            residual = x
            x = self.input_layernorm(x)
            return residual + self.mlp(x)

    model, x = torch_nn.Sequential(Layer(8)), drawn_input()
    old = copy.deepcopy(model)
    report = replace_norms(model, fuse_residual=True)
    assert [name for name, *_ in report.fused] == ["0"], report.unfused
    close(results(model, x), results(old, x))


def test_a_forward_may_have_its_own_name_for_the_layer():
    class Layer(LlamaLayer):
        def forward(layer, x):  # noqa: N805
            residual = x
            x = layer.input_layernorm(x)
            x = residual + layer.self_attn(hidden_states=x)[0]
            residual = x
            x = layer.post_attention_layernorm(x)
            return residual + layer.mlp(x)

    model, x = drawn(Layer), drawn_input()
    old = copy.deepcopy(model)
    report = replace_norms(model, fuse_residual=True)
    assert [sites for *_, sites in report.fused] == [LAYERS[LlamaLayer]] * 2, report.unfused
    close(results(model, x), results(old, x))


def test_a_layer_may_have_a_module_under_two_names_and_a_name_without_a_module():
    class Layer(PreLayerNormLayer):
        def __init__(self, size):
            super().__init__(size)
            self.register_module("gate", None)
            self.same = self.mlp

        def forward(self, x):
            x = x + self.attn(self.ln_1(x))[0]
            y = self.ln_2(x)
            y = self.same(y)
            return x + (y if self.gate is None else self.gate(y))

    model, x = drawn(Layer), drawn_input()
    old = copy.deepcopy(model)
    report = replace_norms(model, fuse_residual=True)
    assert [name for name, *_ in report.fused] == ["0", "1"], report.unfused
    close(results(model, x), results(old, x))
