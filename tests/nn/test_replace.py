"""replace_norms: what is swapped, what is shared, and what is refused because it computes something else."""

import copy
import pickle

import pytest
import torch
from torch import nn as torch_nn
from torch.nn.utils import prune

from normlab.nn import FusedLayerNorm, FusedRMSNorm, replace_norms


class LlamaRMSNorm(torch_nn.Module):
    """As transformers writes it: no normalized_shape, eps under another name, two roundings."""

    def __init__(self, size, eps=1e-6):
        super().__init__()
        self.weight = torch_nn.Parameter(torch.ones(size))
        self.variance_epsilon = eps

    def forward(self, hidden):
        dtype = hidden.dtype
        hidden = hidden.float()
        hidden = hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * hidden.to(dtype)


class T5LayerNorm(torch_nn.Module):
    """As transformers writes it, and MT5, UMT5, LongT5 and Pop2Piano again: an RMSNorm by another name."""

    def __init__(self, size, eps=1e-6):
        super().__init__()
        self.weight = torch_nn.Parameter(torch.ones(size))
        self.variance_epsilon = eps

    def forward(self, states):
        squares = states.float().square().mean(-1, keepdim=True)
        states = states * torch.rsqrt(squares + self.variance_epsilon)
        if self.weight.dtype in (torch.float16, torch.bfloat16):
            states = states.to(self.weight.dtype)
        return self.weight * states


class ScaleByRoot(torch_nn.Module):
    """What an RMSNorm computes, but neither its name nor transformers' name for the eps says so."""

    def __init__(self, size):
        super().__init__()
        self.weight = torch_nn.Parameter(torch.ones(size))
        self.eps = 1e-6

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)


class GemmaRMSNorm(LlamaRMSNorm):
    def forward(self, hidden):
        return hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.variance_epsilon) * (1 + self.weight)


class OutsideRMSNorm(LlamaRMSNorm):
    """eps outside the root: the same for ordinary rows, another norm for small ones."""

    def forward(self, hidden):
        return hidden / (hidden.pow(2).mean(-1, keepdim=True).sqrt() + self.variance_epsilon) * self.weight


class GatedRMSNorm(LlamaRMSNorm):
    def forward(self, hidden, gate):
        return super().forward(hidden) * gate


class LayerNorm2d(torch_nn.LayerNorm):
    """Channels first."""

    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Float32LayerNorm(torch_nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.float()).to(x.dtype)


class UnbiasedRMSNorm(LlamaRMSNorm):
    def forward(self, hidden):
        square = hidden.pow(2).sum(-1, keepdim=True) / (hidden.shape[-1] - 1)
        return self.weight * hidden * torch.rsqrt(square + self.variance_epsilon)


class CentredRMSNorm(LlamaRMSNorm):
    def forward(self, hidden):
        return self.weight * hidden * torch.rsqrt(hidden.var(-1, correction=0, keepdim=True) + self.variance_epsilon)


class LargerRMSNorm(LlamaRMSNorm):
    def forward(self, hidden):
        return super().forward(hidden) / 1.1**0.5


class Float32RMSNorm(LlamaRMSNorm):
    """Its output is float32, whatever goes in: no norm of normlab's does that."""

    def forward(self, hidden):
        return super().forward(hidden.float()).float()


class OptionallyGatedRMSNorm(LlamaRMSNorm):
    """As in Mamba2: called with a gate, it does more."""

    def forward(self, hidden, gate=None):
        return super().forward(hidden if gate is None else hidden * gate)


class AnythingRMSNorm(LlamaRMSNorm):
    def forward(self, hidden, **anything):
        return super().forward(hidden)


def block(**norms) -> torch_nn.Module:
    torch.manual_seed(0)
    model = torch_nn.ModuleDict({"linear": torch_nn.Linear(8, 8), **norms})
    for name, parameter in model.named_parameters():
        if "linear" not in name:
            torch_nn.init.uniform_(parameter, 0.5, 1.5)
    return model


@pytest.mark.parametrize("memory_efficient", [False, True, "exact"])
def test_norms_are_swapped_in_place_and_share_their_parameters(memory_efficient):
    model = block(
        layer=torch_nn.LayerNorm((2, 4), 1e-3), bare=torch_nn.LayerNorm(8, elementwise_affine=False),
        unbiased=torch_nn.LayerNorm(8, bias=False), rms=torch_nn.RMSNorm(8), llama=LlamaRMSNorm(8, 1e-4),
        wide=Float32LayerNorm(8),
    )  # fmt: skip
    old = copy.deepcopy(model)
    parameters, keys = list(model.parameters()), list(model.state_dict())
    report = replace_norms(model, memory_efficient=memory_efficient)
    assert report == [
        ("layer", torch_nn.LayerNorm, FusedLayerNorm),
        ("bare", torch_nn.LayerNorm, FusedLayerNorm),
        ("unbiased", torch_nn.LayerNorm, FusedLayerNorm),
        ("rms", torch_nn.RMSNorm, FusedRMSNorm),
        ("llama", LlamaRMSNorm, FusedRMSNorm),
        ("wide", Float32LayerNorm, FusedLayerNorm),
    ]
    assert report.refused == []
    assert str(report).startswith("layer: LayerNorm -> FusedLayerNorm\nbare: ")
    assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
    assert list(model.state_dict()) == keys
    for name, norm in model.items():
        if name == "linear":
            continue
        assert norm.memory_efficient == memory_efficient
        x = torch.randn(3, 2, 4) if name == "layer" else torch.randn(3, 8) * 1e-2
        torch.testing.assert_close(norm(x), old[name](x))
        if name not in ("llama",):
            assert repr(norm) == repr(old[name]).replace(type(old[name]).__name__, type(norm).__name__)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_t5_s_layer_norm_is_an_rms_norm(dtype):
    model = block(t5=T5LayerNorm(8, 1e-4), other=ScaleByRoot(8)).to(dtype)
    old = copy.deepcopy(model)
    weight, state = model["t5"].weight, list(model.state_dict())
    report = replace_norms(model)
    assert report == [("t5", T5LayerNorm, FusedRMSNorm)]
    assert report.refused == []
    assert type(model["other"]) is ScaleByRoot
    assert model["t5"].weight is weight
    assert list(model.state_dict()) == state
    for scale in (1, 1e-2):  # the eps counts in the second
        x = (torch.randn(3, 8) * scale).to(dtype)
        torch.testing.assert_close(model["t5"](x), old["t5"](x))


def test_norms_that_compute_something_else_stay_and_the_report_says_why():
    model = block(gemma=GemmaRMSNorm(8), outside=OutsideRMSNorm(8), gated=GatedRMSNorm(8), channels=LayerNorm2d(8))
    before = dict(model.items())
    report = replace_norms(model)
    assert report == []
    assert dict(model.items()) == before
    reasons = {name: reason for name, _, reason in report.refused}
    assert list(reasons) == ["gemma", "outside", "gated", "channels"]
    assert reasons["gemma"].startswith("it computes something else: off by ")
    assert reasons["outside"].startswith("it computes something else: off by ")
    assert reasons["gated"].startswith("it cannot be compared: TypeError: ")
    assert reasons["channels"].startswith("it cannot be compared: ")
    assert "gemma: GemmaRMSNorm stays: it computes" in str(report)


def test_norms_are_compared_on_their_own_device_whatever_the_default():
    model = block(rms=torch_nn.RMSNorm(8), llama=LlamaRMSNorm(8, 1e-4))
    with torch.device("meta"):
        report = replace_norms(model)
    assert [name for name, *_ in report] == ["rms", "llama"], report.refused


def test_a_norm_in_two_places_stays_one_and_modes_and_hooks_stay():
    shared = torch_nn.LayerNorm(8)
    seen = []
    shared.register_forward_hook(lambda *_: seen.append(1))
    model = torch_nn.Sequential(shared, torch_nn.Linear(8, 8), shared).eval()
    assert [name for name, *_ in replace_norms(model)] == ["0", "2"]
    assert model[0] is model[2]
    assert not model[0].training
    model(torch.randn(2, 8))
    assert seen == [1, 1]


def test_what_cannot_be_swapped_is_said():
    assert replace_norms(torch_nn.LayerNorm(4)).refused == [("", torch_nn.LayerNorm, "it is the model itself")]
    with torch.device("meta"):
        model = block(norm=LlamaRMSNorm(8), plain=torch_nn.LayerNorm(8))
    report = replace_norms(model)
    assert [name for name, *_ in report] == ["plain"]
    assert "meta device" in report.refused[0][2]
    model = block(norm=torch_nn.LayerNorm(8))
    torch.nn.utils.parametrizations.weight_norm(model["norm"], "weight", dim=None)
    assert "parametrized" in replace_norms(model).refused[0][2]
    assert str(replace_norms(torch_nn.Linear(2, 2))) == "no norms"


def test_swapping_twice_swaps_nothing_more_and_global_random_numbers_are_not_used():
    model = block(llama=LlamaRMSNorm(8))
    state = torch.get_rng_state()
    assert len(replace_norms(model)) == 1
    assert len(replace_norms(model)) == 0
    assert torch.equal(torch.get_rng_state(), state)


def test_a_model_trains_as_before():
    model = block(norm=torch_nn.LayerNorm(8))
    twin = copy.deepcopy(model)
    replace_norms(model, memory_efficient="exact")
    x, losses = torch.randn(16, 8), []
    for one in (model, twin):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.05)
        for _ in range(5):
            optimizer.zero_grad()
            loss = (one["norm"](one["linear"](x)) - x).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_hooks_of_every_kind_go_on_being_called():
    model = torch.nn.Sequential(torch.nn.LayerNorm(4))
    called = []
    model[0].register_full_backward_hook(lambda *_: called.append("backward"))
    model[0].register_forward_hook(lambda module, args, kwargs, out: called.append("forward"), with_kwargs=True)
    model[0].register_state_dict_pre_hook(lambda *_: called.append("state dict"))
    replace_norms(model)
    model(torch.randn(2, 4, requires_grad=True)).sum().backward()
    model.state_dict()
    assert called == ["forward", "backward", "state dict"]


HALVES = (torch.float16, torch.bfloat16)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize(
    "norm",
    [torch_nn.LayerNorm, torch_nn.RMSNorm, LlamaRMSNorm, T5LayerNorm, Float32LayerNorm],
    ids=lambda n: n.__name__,
)
def test_an_output_has_the_dtype_it_had(norm, half):
    """torch.nn's have the input's, T5's the parameters', Llama's the wider; also if the model's changes later."""
    for before in (torch.float32, half):
        model = block(norm=norm(8, eps=1e-5)).to(before)
        old = copy.deepcopy(model["norm"])
        assert replace_norms(model).refused == []
        new = pickle.loads(pickle.dumps(copy.deepcopy(model["norm"])))
        assert list(new.state_dict()) == list(old.state_dict())
        for parameters in (torch.float32, half):
            old.to(parameters), new.to(parameters)
            for given in (torch.float32, half):
                x = torch.randn(3, 8).to(given).requires_grad_()
                try:
                    want = old(x)
                except RuntimeError:  # torch.nn.LayerNorm: half parameters, a float32 input
                    continue
                got = new(x)
                assert got.dtype == want.dtype
                tolerance = 1e-5 if given == got.dtype == torch.float32 else 2e-2  # no rounding in between
                torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
                got.sum().backward()
                assert x.grad.dtype == given


def test_float32_norms_in_a_half_model_are_followed_by_halves():
    for norm in (torch_nn.LayerNorm, torch_nn.RMSNorm):
        model = torch_nn.Sequential(norm(8), torch_nn.Linear(8, 8).bfloat16())
        x = torch.randn(2, 8).bfloat16()
        want = model(x)
        replace_norms(model)
        torch.testing.assert_close(model(x), want, rtol=2e-2, atol=2e-2)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("mode", [True, "exact"])
@pytest.mark.parametrize("norm", [torch_nn.LayerNorm, torch_nn.RMSNorm])
def test_where_the_output_is_rounded_from_float32_the_half_input_is_kept(norm, mode, half):
    """Which is half of it: the rounded output is the next layer's, and not what a gradient could be made of."""
    model = torch_nn.Sequential(norm(64))
    replace_norms(model, memory_efficient=mode)
    x = torch.randn(8, 64).to(half).requires_grad_()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: kept.append(one) or one, lambda one: one):
        y = model(x)
    assert [one.dtype for one in kept if one.numel() == x.numel()] == [half]
    grad = torch.randn(8, 64).to(half)
    want = torch.autograd.grad(norm(64)(x.float()), x, grad.float())
    torch.testing.assert_close(torch.autograd.grad(y, x, grad), want, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_another_formula_is_seen_in_every_dtype(dtype):
    model = block(
        unbiased=UnbiasedRMSNorm(8), centred=CentredRMSNorm(8), larger=LargerRMSNorm(8), outside=OutsideRMSNorm(8)
    ).to(dtype)
    report = replace_norms(model)
    assert report == []
    assert [name for name, *_ in report.refused] == ["unbiased", "centred", "larger", "outside"]
    assert all(why.startswith("it computes something else: off by ") for _, _, why in report.refused)


def test_a_dtype_that_is_no_rule_of_normlab_s_is_refused():
    report = replace_norms(block(norm=Float32RMSNorm(8)))
    assert "another dtype for parameters in torch.bfloat16 and an input in torch.bfloat16" in report.refused[0][2]


def test_a_norm_that_takes_more_than_an_input_stays():
    report = replace_norms(block(gated=OptionallyGatedRMSNorm(8), anything=AnythingRMSNorm(8)))
    assert [(name, why) for name, _, why in report.refused] == [
        ("gated", "its forward takes more than an input: hidden, gate=None"),
        ("anything", "its forward takes more than an input: hidden, **anything"),
    ]


class ChannelsFirst(torch_nn.LayerNorm):
    """As ESPnet has it."""

    def forward(self, x):
        return super().forward(x.transpose(1, -1)).transpose(1, -1)


class Dropping(torch_nn.LayerNorm):
    def forward(self, x):
        return torch_nn.functional.dropout(super().forward(x), 0.5, self.training)


def test_a_norm_over_another_dimension_stays():
    model = torch_nn.Sequential(torch_nn.Conv1d(4, 8, 3, padding=1), ChannelsFirst(8))
    x = torch.randn(2, 4, 8)
    want = model(x)
    ((name, kind, _),) = replace_norms(model).refused
    assert (name, kind) == ("1", ChannelsFirst)
    torch.testing.assert_close(model(x), want)


@pytest.mark.parametrize("training", [True, False])
def test_what_a_norm_does_in_training_alone_is_seen_in_evaluation_too(training):
    ((*_, why),) = replace_norms(torch_nn.Sequential(Dropping(8)).train(training)).refused
    assert why.startswith("it computes something else")


def test_a_forward_or_a_buffer_that_a_norm_has_for_itself_is_not_lost():
    model = torch_nn.Sequential(torch_nn.LayerNorm(4), torch_nn.RMSNorm(4))
    forward = model[0].forward
    model[0].forward = lambda x: 2 * forward(x)
    model[1].register_buffer("scale", torch.ones(1))
    keys, x = model.state_dict().keys(), torch.randn(2, 4)
    want = model(x)
    report = replace_norms(model)
    assert [why for *_, why in report.refused] == [
        "its forward is one of its own, not its class's", "it has buffers: scale",
    ]  # fmt: skip
    assert model.state_dict().keys() == keys
    torch.testing.assert_close(model(x), want)


def test_weights_that_are_made_before_every_forward_stay_as_they_are():
    model = torch_nn.Sequential(torch_nn.LayerNorm(8), torch_nn.RMSNorm(8), torch_nn.LayerNorm(8))
    prune.random_unstructured(model[0], "weight", 0.5)
    prune.random_unstructured(model[2], "bias", 0.5)
    with pytest.warns(FutureWarning):
        torch.nn.utils.weight_norm(model[1], "weight", dim=None)
    before, keys = list(model), list(model.state_dict())
    report = replace_norms(model)
    assert [why for *_, why in report.refused] == [
        f"its {name} is no parameter" for name in ("weight", "weight", "bias")
    ]
    assert list(model) == before
    assert list(model.state_dict()) == keys


def test_an_error_leaves_the_model_whole(monkeypatch):
    model = torch_nn.Sequential(torch_nn.LayerNorm(8), torch_nn.RMSNorm(8))
    before = list(model)
    monkeypatch.setattr(FusedRMSNorm, "__init__", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        replace_norms(model)
    assert list(model) == before


def test_another_memory_efficient_is_named_where_there_is_no_norm_too():
    with pytest.raises(ValueError, match="memory_efficient must be False, True or \"exact\", got 'all'"):
        replace_norms(torch_nn.Linear(2, 2), memory_efficient="all")


def test_comparing_calls_no_hooks_and_copies_nothing_that_they_hold():
    class Holder:
        called = 0

        def __call__(self, *_):
            self.called += 1

        def __deepcopy__(self, memo):
            raise AssertionError("copied")

    model, holder = block(norm=LlamaRMSNorm(8)), Holder()
    model["norm"].register_forward_hook(holder)
    assert replace_norms(model).refused == []
    assert holder.called == 0
    model["norm"](torch.randn(2, 8))
    assert holder.called == 1
