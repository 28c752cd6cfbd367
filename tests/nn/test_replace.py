"""replace_norms: what is swapped, what is shared, and what is refused because it computes something else."""

import copy
import pickle
from contextlib import nullcontext
from functools import partial, update_wrapper
from inspect import signature

import pytest
import torch
from draws import paired
from nn.decoder_layers import GemmaRMSNorm
from torch import nn as torch_nn
from torch.nn.utils import prune

from normlab import nn
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


class CentredWeightLayerNorm(torch_nn.LayerNorm):
    """As NeMo's LayerNorm1P: 1 + weight, and a bias."""

    def forward(self, x):
        return torch_nn.functional.layer_norm(x, self.normalized_shape, 1 + self.weight, self.bias, self.eps)


class EarlyRoundingRMSNorm(LlamaRMSNorm):
    """Of halves, 1 + weight is rounded: what Gemma's norm must not be."""

    def forward(self, hidden):
        wide = hidden.float()
        normalised = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return normalised.to(hidden.dtype) * (1 + self.weight)


class WiderOffsetRMSNorm(LlamaRMSNorm):
    """A float32 output of a half input and float32 weights, from normalised values rounded to the half."""

    def forward(self, hidden):
        wide = hidden.float()
        normalised = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        output = torch.promote_types(hidden.dtype, self.weight.dtype)
        if output == torch.float32:
            normalised = normalised.to(hidden.dtype)
        return (normalised * (1 + self.weight.float())).to(output)


class OutsideRMSNorm(LlamaRMSNorm):
    """eps outside the root: the same for ordinary rows, another norm for small ones."""

    def forward(self, hidden):
        return hidden / (hidden.pow(2).mean(-1, keepdim=True).sqrt() + self.variance_epsilon) * self.weight


class FiniteLayerNorm(torch_nn.LayerNorm):
    def forward(self, x):
        return super().forward(x).nan_to_num()


class WithoutInfinitiesRMSNorm(LlamaRMSNorm):
    def forward(self, hidden):
        return super().forward(torch.where(hidden.isinf(), 0, hidden))


class GroupNorm32(torch_nn.GroupNorm):
    """As in many diffusion models: always in float32. It takes no float64 parameters."""

    def forward(self, x):
        return super().forward(x.float()).type(x.dtype)


class BatchNorm32(torch_nn.BatchNorm2d):
    def forward(self, x):
        return super().forward(x.float()).type(x.dtype)


class RaisingBatchNorm(torch_nn.BatchNorm2d):
    def forward(self, x):
        self._check_input_dim(x)
        raise NotImplementedError("not yet")


class GatedRMSNorm(LlamaRMSNorm):
    def forward(self, hidden, gate):
        return super().forward(hidden) * gate


class LayerNorm2d(torch_nn.LayerNorm):
    """Channels first."""

    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ChannelsFirst(torch_nn.LayerNorm):
    """As ESPnet has it."""

    def forward(self, x):
        return super().forward(x.transpose(1, -1)).transpose(1, -1)


class SquareRMSNorm(LlamaRMSNorm):
    """Takes matrices of one size only."""

    def forward(self, hidden):
        return super().forward(hidden.reshape(8, 8))


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
    assert report.left == report.missed == []
    assert [line.split()[:3] for line in str(report).splitlines()[1:3]] == [
        ["layer", "LayerNorm", "FusedLayerNorm,"], ["bare", "LayerNorm", "FusedLayerNorm,"],
    ]  # fmt: skip
    assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
    assert list(model.state_dict()) == keys
    for name, norm in model.items():
        if name == "linear":
            continue
        assert norm.memory_efficient == memory_efficient
        x = torch.randn(3, 2, 4) if name == "layer" else torch.randn(3, 8) * 1e-2
        torch.testing.assert_close(norm(x), old[name](x))
        before = "LlamaRMSNorm((8,), eps=0.0001" if name == "llama" else repr(old[name]).removesuffix(")")
        assert repr(norm).removeprefix("Fused").startswith(before)
        assert repr(norm).endswith(f"memory_efficient={memory_efficient!r})")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_t5_s_layer_norm_is_an_rms_norm(dtype):
    model = block(t5=T5LayerNorm(8, 1e-4), other=ScaleByRoot(8)).to(dtype)
    old = copy.deepcopy(model)
    weight, state = model["t5"].weight, list(model.state_dict())
    report = replace_norms(model)
    assert report == [("t5", T5LayerNorm, FusedRMSNorm)]
    assert report.left == []
    assert [(name, kind) for name, kind, _ in report.missed] == [("other", ScaleByRoot)]
    assert type(model["other"]) is ScaleByRoot
    assert model["t5"].weight is weight
    assert list(model.state_dict()) == state
    for scale in (1, 1e-2):  # the eps counts in the second
        x = (torch.randn(3, 8) * scale).to(dtype)
        torch.testing.assert_close(model["t5"](x), old["t5"](x))


def test_norms_that_compute_something_else_stay_and_the_report_says_why():
    model = block(
        centred=CentredWeightLayerNorm(8), outside=OutsideRMSNorm(8), gated=GatedRMSNorm(8), square=SquareRMSNorm(8)
    )
    before = dict(model.items())
    report = replace_norms(model)
    assert report == []
    assert dict(model.items()) == before
    reasons = {name: reason for name, _, reason in report.refused}
    assert list(reasons) == ["centred", "outside", "gated", "square"]
    assert reasons["centred"] == "it scales by 1 + weight, not by its weight"
    assert reasons["outside"].startswith("it computes something else: off by ")
    assert reasons["gated"].startswith("its forward takes more than an input: hidden, gate; as an RMSNorm with a gate")
    assert reasons["square"].startswith("it cannot be compared: ")
    assert "left: it scales by 1 + weight" in str(report)


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
    model = block(norm=torch_nn.LayerNorm(8))
    torch.nn.utils.parametrizations.weight_norm(model["norm"], "weight", dim=None)
    report = replace_norms(model)
    assert "parametrized" in report.refused[0][2]
    assert report.missed == []
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
    [torch_nn.LayerNorm, torch_nn.RMSNorm, LlamaRMSNorm, T5LayerNorm, Float32LayerNorm, GemmaRMSNorm],
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
    reasons = {name: why for name, _, why in report.refused}
    assert reasons["gated"].startswith("its forward takes more than an input: hidden, gate=None; as an RMSNorm with")
    assert reasons["anything"] == "its forward takes more than an input: hidden, **anything"


class Dropping(torch_nn.LayerNorm):
    def forward(self, x):
        return torch_nn.functional.dropout(super().forward(x), 0.5, self.training)


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


class Listed(torch_nn.Module):
    """Norms that the forward calls by a list, as in MaskFormer, by a partial and by their own compiled calls."""

    def __init__(self):
        super().__init__()
        self.layers = [torch_nn.GroupNorm(2, 8), torch_nn.BatchNorm1d(8), LlamaRMSNorm(8)]
        for index, layer in enumerate(self.layers):
            self.add_module(str(index), layer)
        self.norm, self.alone, self.inside = torch_nn.LayerNorm(8), torch_nn.RMSNorm(8), torch_nn.LayerNorm(8)
        self.partial = partial(self.norm)
        self.compiled = torch.compile(self.alone, backend="eager")
        self.inside.compile(backend="eager")

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.inside(self.compiled(self.partial(x)))


def test_a_norm_stays_the_same_object_so_that_all_that_refers_to_it_calls_the_new_one():
    torch.compiler.reset()
    model, x = Listed(), torch.randn(4, 8)
    before = list(model.modules())
    model(x)  # compiled code is there already
    assert len(replace_norms(model)) == 7  # one of them by two names
    assert list(model.modules()) == before
    state = {name: value + 1 for name, value in model.state_dict().items()}
    model.load_state_dict(state, assign=True)
    want = Listed()
    want.load_state_dict(state)
    torch.testing.assert_close(model.eval()(x), want.eval()(x))
    torch.compiler.reset()


def test_an_error_leaves_the_model_whole(monkeypatch):
    model = torch_nn.Sequential(torch_nn.LayerNorm(8), torch_nn.RMSNorm(8))
    before = list(model)
    monkeypatch.setattr(FusedRMSNorm, "dtype_rule", property(lambda _: None), raising=False)
    monkeypatch.setattr(FusedRMSNorm, "__setattr__", lambda *_: 1 // 0)
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


class ScaledNorm(torch_nn.Module):
    """LayerNorm or RMSNorm over the last dimension or the channels, with parameters and eps of any name."""

    def __init__(self, names, centred, dimension, eps=None):
        super().__init__()
        self.names, self.centred, self.dimension, self.eps_name = names, centred, dimension, eps
        for name in names:
            self.register_parameter(name, torch_nn.Parameter(torch.rand(8) + 0.5))
        if not names:
            self.normalized_shape = (8,)
        if eps is not None:
            setattr(self, eps, 1e-4)

    def forward(self, hidden_states):
        x, dim = hidden_states, self.dimension
        if self.centred:
            x = x - x.mean(dim, keepdim=True)
        x = x * torch.rsqrt(
            x.square().mean(dim, keepdim=True) + (getattr(self, self.eps_name) if self.eps_name else 3e-5)
        )
        sizes = [-1 if index == dim % x.dim() else 1 for index in range(x.dim())]
        for name, combine in zip(self.names, (torch.mul, torch.add), strict=False):
            x = combine(x, getattr(self, name).view(sizes))
        return x


@pytest.mark.parametrize(
    ("norm", "dimension", "eps"),
    paired(
        [
            (True, ()),
            (False, ()),
            (True, ("g",)),
            (False, ("scale",)),
            (True, ("gamma", "beta")),
            (True, ("weight", "bias")),
        ],
        [-1, 1],
        ["eps", "epsilon", "norm_eps", None],
    ),
)
def test_a_norm_is_found_by_what_it_computes_under_any_names(norm, dimension, eps):
    centred, names = norm
    model = torch_nn.Sequential(ScaledNorm(names, centred, dimension, eps))
    old, keys = copy.deepcopy(model), list(model.state_dict())
    ((_, kind, new),) = replace_norms(model)
    assert (kind, new) == (ScaledNorm, FusedLayerNorm if centred else FusedRMSNorm)
    assert isinstance(model[0], (kind, new))
    for made in (model, copy.deepcopy(model), copy.copy(model), pickle.loads(pickle.dumps(model))):
        made.load_state_dict(old.state_dict())
        assert list(made.state_dict()) == keys
        for scale in (1, 1e-3):
            x = torch.randn(2, 8, 3, 8) * scale
            torch.testing.assert_close(made[0](hidden_states=x), old(x))
            assert made(x).is_contiguous()
    assert vars(old[0]).items() <= {**vars(model[0]), **{n: v for n, v in vars(old[0]).items() if n[0] == "_"}}.items()


def test_a_number_of_steps_is_no_eps():
    class Scaled(torch_nn.Module):
        def __init__(self):
            super().__init__()
            self.num_steps, self.scale = 3, torch_nn.Parameter(torch.rand(8))

        def forward(self, x):
            return x * self.scale

    model = torch_nn.Sequential(ScaledNorm(("g",), False, -1, "epsilon"), Scaled())
    vars(model[0]).update({"MAX_STEPS": 5, "steps": 0, "epsilon": vars(model[0]).pop("epsilon")})  # in this order
    report = replace_norms(model)
    assert [new for *_, new in report] == [FusedRMSNorm]
    assert report.left == report.missed == []


def test_a_norm_with_1_is_not_the_norm_with_true():
    class SwitchedNorm(ScaledNorm):
        def __init__(self, switch):
            super().__init__(("g",), False, -1, "eps")
            self.switch = switch

        def forward(self, hidden_states):
            return super().forward(hidden_states) + (0 if self.switch is True else 3)

    report = replace_norms(torch_nn.Sequential(SwitchedNorm(True), SwitchedNorm(1)))
    assert ([name for name, *_ in report], [name for name, *_ in report.left]) == (["0"], ["1"])


def test_a_replaced_norm_takes_the_old_one_s_keyword_and_no_other():
    model = torch_nn.Sequential(ScaledNorm(("g",), False, -1))
    replace_norms(model)
    assert list(signature(model[0].forward).parameters) == ["hidden_states"]
    for wrong in ({"input": torch.ones(8)}, {"hidden_states": torch.ones(8), "x": torch.ones(8)}):
        with pytest.raises(TypeError):
            model[0](**wrong)


def test_a_replaced_norm_compiles_as_a_whole_by_its_keyword():
    class Model(torch_nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = ScaledNorm(("gamma", "beta"), True, 1, "epsilon")

        def forward(self, x):
            return self.norm(hidden_states=x)

    model, x = Model(), torch.randn(2, 8, 3)
    want = model(x)
    replace_norms(model)
    torch.testing.assert_close(torch.compile(model, fullgraph=True, backend="aot_eager")(x), want)


def test_an_eps_by_another_name_is_read_in_each_forward():
    model = block(llama=LlamaRMSNorm(8))
    old, x = copy.deepcopy(model), torch.randn(2, 8)
    replace_norms(model)
    model["llama"].variance_epsilon = old["llama"].variance_epsilon = 2.0
    torch.testing.assert_close(model["llama"](x), old["llama"](x))


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_the_channels_of_images_are_normalised_where_they_are(dtype):
    model = torch_nn.Sequential(torch_nn.Conv2d(3, 8, 1), LayerNorm2d(8), ChannelsFirst(8)).to(dtype)
    old, x = copy.deepcopy(model), torch.randn(2, 3, 4, 8).to(dtype)  # as wide as there are channels
    assert [new for *_, new in replace_norms(model)] == [FusedLayerNorm] * 2
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(model(x), old(x), rtol=tolerance, atol=tolerance)
    assert model[:2](x).stride() == old[:2](x).stride()


@pytest.mark.parametrize("memory_efficient", [False, True, "exact"])
def test_stand_ins_run_the_kernels_too(memory_efficient):
    model = torch_nn.Sequential(ScaledNorm(("g",), False, 1), LayerNorm2d(8), ScaledNorm(("gamma", "beta"), True, -1))
    old, results = copy.deepcopy(model), []
    with nn.engine("simulator"):
        assert len(replace_norms(model, memory_efficient)) == 3
        for one in (old, model):
            x = torch.randn(2, 8, 2, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
            y = one(x)
            y.backward(x.detach().roll(1))
            results.append([y, x.grad, *(parameter.grad for parameter in one.parameters())])
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_an_input_that_is_given_twice_is_named_twice():
    model = block(norm=LlamaRMSNorm(8))
    replace_norms(model)
    with pytest.raises(TypeError, match="called hidden, got hidden, hidden"):
        model["norm"](torch.ones(8), hidden=torch.ones(8))


@pytest.mark.parametrize("size", [8, [8]])
def test_a_norm_s_size_becomes_a_tuple_as_torch_s_own(size):
    old = LlamaRMSNorm(8, 1e-4)
    old.normalized_shape = size
    model = block(norm=old)
    replace_norms(model)
    assert repr(model["norm"]).startswith("LlamaRMSNorm((8,), eps=0.0001")
    assert old.normalized_shape == (8,)


@pytest.mark.parametrize("mode", [False, True, "exact"])
def test_a_norm_that_scales_by_1_plus_weight_is_an_rms_norm_with_an_offset(mode):
    model = block(gemma=GemmaRMSNorm(8, 1e-3))
    old, keys = copy.deepcopy(model["gemma"]), list(model.state_dict())
    assert replace_norms(model, mode) == [("gemma", GemmaRMSNorm, FusedRMSNorm)]
    assert list(model.state_dict()) == keys
    assert isinstance(model["gemma"], GemmaRMSNorm)
    assert repr(model["gemma"]).endswith(f"memory_efficient={mode!r}, offset=1)")
    for norm in (model["gemma"], copy.deepcopy(model["gemma"]), pickle.loads(pickle.dumps(model["gemma"]))):
        for scale in (1, 1e-2):
            results = []
            for one in (norm, old):
                one.zero_grad()
                x = (torch.randn(3, 8, generator=torch.Generator().manual_seed(0)) * scale).requires_grad_()
                one(x).pow(3).sum().backward()
                results.append([one(x), x.grad, one.weight.grad])
            torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
    with torch.no_grad(), nn.engine("simulator"):
        x = torch.randn(3, 8)
        torch.testing.assert_close(model["gemma"](x), old(x), rtol=1e-5, atol=1e-5)
    compiled = torch.compile(model["gemma"], fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), old(x))
    torch.testing.assert_close(torch.func.vmap(model["gemma"])(x), old(x))


@pytest.mark.parametrize("mode", [False, True, "exact"])
def test_a_replaced_norm_with_an_offset_keeps_one_tensor(mode):
    model, x = torch_nn.Sequential(GemmaRMSNorm(64)), torch.randn(8, 64, requires_grad=True)
    replace_norms(model, mode)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: saved.append(one) or one, lambda one: one):
        y = model(x)
    (kept,) = [one for one in saved if one.numel() == x.numel()]
    assert kept.data_ptr() == (y if mode else x).data_ptr()


@pytest.mark.parametrize("half", HALVES)
def test_one_plus_weight_is_not_rounded_to_a_half_by_a_replaced_norm(half):
    """Which of the two a norm does is compared in halves: in float32 both compute the same."""
    model = block(early=EarlyRoundingRMSNorm(8), wider=WiderOffsetRMSNorm(8), gemma=GemmaRMSNorm(8)).to(half)
    report = replace_norms(model)
    assert [name for name, *_ in report] == ["gemma"]
    reasons = {name: why for name, _, why in report.left}
    assert "rounds 1 + weight or the normalised values to torch.bfloat16 before it multiplies" in reasons["early"]
    assert "rounds to torch.bfloat16 or torch.float32 before its float32 output" in reasons["wider"]
    with torch.no_grad():
        model["gemma"].weight.fill_(2.0**-9)  # 1 + weight is 1 in bfloat16
    x = torch.full((1, 8), 1.5).to(half)
    wide = (1 + 2.0**-9) * torch_nn.functional.rms_norm(x.float(), (8,), eps=1e-6)
    assert torch.equal(model["gemma"](x), wide.to(half))


def test_norms_of_heads_are_replaced_and_take_views_of_a_fused_projection():
    """As Qwen3 and Gemma 3 have them: a norm of each head, of a query that lies in a tensor with key and value."""
    model = block(llama=LlamaRMSNorm(8), gemma=GemmaRMSNorm(8))
    old = copy.deepcopy(model)
    assert len(replace_norms(model)) == 2
    for name in ("llama", "gemma"):
        results = []
        for one in (model[name], old[name]):
            fused = torch.randn(2, 3, 4 * 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
            y = one(fused[..., 8:24].view(2, 3, 2, 8)).transpose(1, 2)
            y.square().sum().backward()
            results.append([y, fused.grad, one.weight.grad])
        torch.testing.assert_close(*results)


class OlmoLayerNorm(torch_nn.Module):
    """As transformers writes it: no parameters, and an eps in the code alone."""

    def __init__(self, size):
        super().__init__()
        self.normalized_shape = (size,)

    def forward(self, hidden_states):
        x = hidden_states.to(dtype=torch.float32)
        return torch_nn.functional.layer_norm(x, self.normalized_shape, None, None, eps=1e-5).to(hidden_states.dtype)


class Detached(LlamaRMSNorm):
    def forward(self, hidden):
        return self.weight * hidden * torch.rsqrt(hidden.detach().square().mean(-1, keepdim=True) + 1e-6)


class DetachedWeight(LlamaRMSNorm):
    def forward(self, hidden):
        return self.weight.detach() * hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + 1e-6)


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


class ReversedNorm(LlamaRMSNorm):
    def forward(self, hidden):
        return super().forward(Reversed.apply(hidden))


class WithoutGradients(LlamaRMSNorm):
    @torch.no_grad()
    def forward(self, hidden):
        return super().forward(hidden)


def clamping(where, limit):
    class Clamping(LlamaRMSNorm):
        def forward(self, hidden):
            if where == "input":
                return super().forward(hidden.clamp(-limit, limit))
            if where == "output":
                return super().forward(hidden).clamp(-limit, limit)
            if where == "normalised":
                squares = hidden.square().mean(-1, keepdim=True) + self.variance_epsilon
                return self.weight * (hidden * torch.rsqrt(squares)).clamp(-limit, limit)
            square = hidden.square().mean(-1, keepdim=True).clamp(min=1 / limit)
            return self.weight * hidden * torch.rsqrt(square + self.variance_epsilon)

    return Clamping(64)


@pytest.mark.parametrize(
    ("norm", "reason"),
    [
        (Detached(8), "the gradient of its input is another"),
        (DetachedWeight(8), "the gradient of its weight is not there, unlike normlab's"),
        (ReversedNorm(8), "the gradient of its input is another"),
        (WithoutGradients(8), "the gradient of its input is not there, unlike normlab's"),
        (clamping("input", 65504), "it computes something else"),
        (clamping("output", 65504), "it computes something else"),
        (clamping("output", 10), "it computes something else"),
        (clamping("normalised", 7), "it computes something else"),
        (clamping("square", 1e5), "it computes something else"),
    ],
)
def test_another_gradient_and_a_clamp_are_seen(norm, reason):
    report = replace_norms(torch_nn.Sequential(norm))
    assert report == []
    assert report.left[0][2].startswith(reason)


def test_the_gradient_of_a_frozen_weight_counts_too():
    """Which may be thawed later."""
    model = torch_nn.Sequential(DetachedWeight(8), LlamaRMSNorm(8)).requires_grad_(False)
    assert [name for name, *_ in replace_norms(model)] == ["1"]


class Doubling(LlamaRMSNorm):
    def __init__(self, size, factors):
        super().__init__(size)
        self.factors = factors

    def forward(self, hidden):
        return super().forward(hidden) * self.factors[0]


@pytest.mark.parametrize("of", [tuple, list])
def test_norms_of_one_class_are_told_apart_by_their_attributes_and_modules(of):
    model = torch_nn.Sequential(
        Doubling(8, of([1])), Doubling(8, of([2])), Doubling(8, of([1])),
        Activated(8, torch_nn.Identity()), Activated(8, torch_nn.ReLU()),
    )  # fmt: skip
    assert [name for name, *_ in replace_norms(model)] == ["0", "2", "3"]


@pytest.mark.parametrize("context", [nullcontext, torch.inference_mode])
def test_comparing_draws_none_of_the_caller_s_random_numbers(context):
    numbers = torch.get_rng_state()
    with context():
        replace_norms(torch_nn.Sequential(Dropping(8)))
    assert torch.equal(torch.get_rng_state(), numbers)


class EitherDimension(torch_nn.LayerNorm):
    """Channels first for images, last for all others."""

    def forward(self, x):
        return super().forward(x.movedim(1, -1)).movedim(-1, 1) if x.dim() == 4 else super().forward(x)


def test_a_norm_whose_dimension_depends_on_the_input_stays():
    report = replace_norms(torch_nn.Sequential(EitherDimension(8)))
    assert report == []


def test_a_norm_without_parameters_is_found_in_every_dtype():
    for dtype in (torch.float32, *HALVES):
        model = torch_nn.Sequential(OlmoLayerNorm(8)).to(dtype)
        old, x = copy.deepcopy(model), torch.randn(4, 8).to(dtype) * 1e-2
        assert replace_norms(model) == [("0", OlmoLayerNorm, FusedLayerNorm)]
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(model[0](hidden_states=x), old(x), rtol=tolerance, atol=tolerance)


FAMILY = [
    (torch_nn.BatchNorm1d(8), nn.BatchNorm1d, (4, 8)),
    (torch_nn.BatchNorm2d(8, momentum=None), nn.BatchNorm2d, (4, 8, 3, 2)),
    (torch_nn.BatchNorm3d(8, affine=False, track_running_stats=False), nn.BatchNorm3d, (4, 8, 3, 2, 2)),
    (torch_nn.InstanceNorm1d(8), nn.InstanceNorm1d, (4, 8, 5)),
    (torch_nn.InstanceNorm2d(8, affine=True, track_running_stats=True), nn.InstanceNorm2d, (4, 8, 3, 2)),
    (torch_nn.InstanceNorm3d(8), nn.InstanceNorm3d, (4, 8, 3, 2, 2)),
    (torch_nn.GroupNorm(2, 8), nn.GroupNorm, (4, 8, 3)),
]


class Renamed(torch_nn.BatchNorm2d):
    def forward(self, images):
        return super().forward(images)


class Activated(torch_nn.BatchNorm2d):
    """As timm's BatchNormAct2d."""

    def __init__(self, size, activation):
        super().__init__(size)
        self.activation = activation

    def forward(self, x):
        return self.activation(super().forward(x))


@pytest.mark.parametrize(("norm", "new", "shape"), [
    *FAMILY,
    (Renamed(8), nn.BatchNorm2d, (4, 8, 3, 2)),
    (Activated(8, torch_nn.Identity()), nn.BatchNorm2d, (4, 8, 3, 2)),
])  # fmt: skip
def test_batch_instance_and_group_norms_are_replaced_statistics_included(norm, new, shape):
    model = torch_nn.Sequential(copy.deepcopy(norm))
    old, keys = copy.deepcopy(model), list(model.state_dict())
    assert replace_norms(model) == [("0", type(norm), new)]
    assert isinstance(model[0], type(norm))
    assert list(model.state_dict()) == keys
    for training in (True, False):
        old.train(training), model.train(training)
        results = []
        for one in (old, model):
            x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
            one(x).square().sum().backward()
            results.append([one(x), x.grad, *one.buffers()])
        for want, got in zip(*results, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert replace_norms(model) == []


class Slower(torch_nn.BatchNorm2d):
    """Its running statistics follow with another momentum."""

    def forward(self, x):
        momentum, self.momentum = self.momentum, self.momentum / 2
        try:
            return super().forward(x)
        finally:
            self.momentum = momentum


class RenamedGroupNorm(torch_nn.GroupNorm):
    def forward(self, images):
        return super().forward(images)


@pytest.mark.parametrize("channels", [32, 64, 2048])
def test_digits_that_torch_nn_loses_are_no_other_norm(channels):
    model = torch_nn.Sequential(RenamedGroupNorm(32, channels), RenamedGroupNorm(1, channels))
    assert len(replace_norms(model)) == 2


def test_other_running_statistics_are_seen():
    report = replace_norms(torch_nn.Sequential(Slower(8)))
    assert report == []
    assert report.left[0][2].startswith("its buffer running_mean is another")


def test_a_batch_norm_without_a_class_of_torch_nn_s_own_stays():
    class AnyRank(torch_nn.modules.batchnorm._BatchNorm):
        def _check_input_dim(self, input):
            pass

    report = replace_norms(torch_nn.Sequential(AnyRank(8)))
    assert [why for *_, why in report.left] == ["normlab has none of its kind"]


def test_norms_of_all_processes_lazy_ones_and_those_with_an_activation_stay():
    model = torch_nn.ModuleDict({
        "sync": torch_nn.SyncBatchNorm(8), "lazy": torch_nn.LazyBatchNorm2d(),
        "instance": torch_nn.LazyInstanceNorm1d(), "active": Activated(8, torch_nn.ReLU()),
        "local": torch_nn.LocalResponseNorm(2),
    })  # fmt: skip
    report = replace_norms(model)
    assert report == []
    reasons = {name: why for name, _, why in report.left}
    assert list(reasons) == ["sync", "lazy", "instance", "active"]
    assert "all processes" in reasons["sync"]
    assert "lazy" in reasons["lazy"]
    assert "lazy" in reasons["instance"]
    assert reasons["active"].startswith("it computes something else")
    assert [name for name, *_ in report.missed] == ["local"]


def test_a_second_call_switches_the_mode():
    model = block(
        layer=torch_nn.LayerNorm(8), llama=LlamaRMSNorm(8), apex=FusedLayerNorm(8), batch=torch_nn.BatchNorm1d(8)
    )
    assert [mode for *_, mode in replace_norms(model, True).switched] == [False]
    norms = list(model.values())
    report = replace_norms(model, False)
    assert report == []
    assert [(name, mode) for name, _, mode in report.switched] == [("layer", True), ("llama", True), ("apex", True)]
    assert "memory_efficient=False, was True" in str(report)
    assert list(model.values()) == norms
    assert [norm.memory_efficient for norm in norms[1:4]] == [False] * 3


def pre_norm(norm):
    """A residual stream of 8 by 64 values through a norm and a linear layer."""

    class Block(torch_nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.linear = norm, torch_nn.Linear(64, 64)

        def forward(self, x):
            return x + self.linear(self.norm(x))

    return torch_nn.Sequential(Block(), Block())


def test_the_bytes_saved_are_those_of_the_inputs_that_nothing_else_keeps():
    """The output is the linear layer's input, which it keeps; the first norm's input is the caller's, who keeps it."""
    model, x = pre_norm(torch_nn.LayerNorm(64)), torch.randn(8, 64)
    report = replace_norms(model, True)
    assert [report.bytes_saved(x), report.bytes_saved(input=x)] == [4 * (8 * 64 + 2 * 8)] * 2  # and two means
    assert replace_norms(model, False).bytes_saved(x) == 0
    assert not x.requires_grad


def test_counting_bytes_leaves_the_model_and_the_random_numbers_as_they_are():
    model = torch_nn.Sequential(
        torch_nn.BatchNorm1d(8), torch_nn.Dropout(), torch_nn.LayerNorm(8), torch_nn.Linear(8, 8)
    )
    report = replace_norms(model)
    state, kinds = copy.deepcopy(model.state_dict()), [type(one) for one in model]
    numbers = torch.get_rng_state()
    report.bytes_saved(torch.randn(4, 8, generator=torch.Generator()))
    assert torch.equal(torch.get_rng_state(), numbers)
    assert [type(one) for one in model] == kinds
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_counting_bytes_sets_buffers_back_where_the_model_s_forward_raises():
    model = torch_nn.Sequential(torch_nn.BatchNorm1d(8), torch_nn.Linear(4, 4))
    report, state = replace_norms(model), copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        report.bytes_saved(torch.randn(4, 8))
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_a_norm_whose_forward_is_a_builtin_stays():
    class BuiltinNorm(torch_nn.Module):
        forward = torch.relu

    report = replace_norms(torch_nn.Sequential(BuiltinNorm(), torch_nn.LayerNorm(8)))
    assert report.missed == [("0", BuiltinNorm, "its forward shows no input in its signature")]
    assert [name for name, *_ in report] == ["1"]


def test_what_a_norm_does_with_nan_and_infinities_is_seen():
    report = replace_norms(block(finite=FiniteLayerNorm(8), without=WithoutInfinitiesRMSNorm(8)))
    assert [why for *_, why in report.left] == [
        f"it computes something else: one of the two is not finite on a random input with an element of {value}"
        for value in ("nan", "inf")
    ]


def test_norms_that_compute_in_float32_alone_are_replaced():
    model, x = torch_nn.Sequential(GroupNorm32(2, 6), BatchNorm32(6), GroupNorm32(1, 6)), torch.randn(4, 6, 3, 2)
    old = copy.deepcopy(model)
    assert [name for name, *_ in replace_norms(model)] == ["0", "1", "2"]
    for dtype in (torch.float32, torch.bfloat16):
        torch.testing.assert_close(model(x.to(dtype)), old(x.to(dtype)))


def test_the_refusal_of_an_input_of_the_right_rank_is_reported():
    ((_, _, why),) = replace_norms(torch_nn.Sequential(RaisingBatchNorm(6))).left
    assert why == "it cannot be compared: NotImplementedError: not yet"


def accelerated(module, calls):
    """As accelerate's `add_hook_to_module` does it."""
    module._old_forward, module._hf_hook = module.forward, calls

    def new_forward(module, *args, **kwargs):
        module._hf_hook.append(module)
        return module._old_forward(*args, **kwargs)

    module.forward = update_wrapper(partial(new_forward, module), module._old_forward)


def test_norms_with_accelerate_s_hooks_are_replaced_inside_of_them():
    model, calls = torch_nn.Sequential(torch_nn.LayerNorm(8), LlamaRMSNorm(8), LlamaRMSNorm(8)), []
    old, x = copy.deepcopy(model), torch.randn(4, 8)
    for norm in model:
        accelerated(norm, calls)
    model[2].forward = lambda hidden: hidden
    report = replace_norms(model)
    assert [name for name, *_ in report] == ["0", "1"]
    assert report.left[0][2] == "its forward is one of its own, not its class's"
    torch.testing.assert_close(model[:2](x), old[:2](x))
    assert calls == list(model)[:2]
    assert all(isinstance(grad_fn_of(norm, x), str) for norm in model[:2])
    for norm in model[:2]:  # as `remove_hook_from_module`
        norm.forward = norm.__dict__.pop("_old_forward")
    torch.testing.assert_close(model[:2](x), old[:2](x))
    assert replace_norms(model).left[0][0] == "2"


def grad_fn_of(norm, x):
    name = type(norm(x).grad_fn).__name__
    assert name == "NormBackward"
    return name


def test_norms_on_the_meta_device_are_replaced_and_get_their_values_later():
    with torch.device("meta"):
        model = block(norm=LlamaRMSNorm(8), plain=torch_nn.LayerNorm(8), gemma=GemmaRMSNorm(8))
    report = replace_norms(model)
    assert [name for name, *_ in report] == ["norm", "plain", "gemma"]
    state = block(norm=LlamaRMSNorm(8), plain=torch_nn.LayerNorm(8), gemma=GemmaRMSNorm(8)).state_dict()
    model.load_state_dict(state, assign=True)
    x = torch.randn(2, 8)
    expected = state["norm.weight"] * torch_nn.functional.rms_norm(x, (8,), eps=1e-6)
    torch.testing.assert_close(model["norm"](x), expected)
    expected = (1 + state["gemma.weight"]) * torch_nn.functional.rms_norm(x, (8,), eps=1e-6)
    torch.testing.assert_close(model["gemma"](x), expected)


@pytest.mark.parametrize(
    "context", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)]
)
def test_norms_are_compared_the_same_in_every_context(context):
    model = block(llama=LlamaRMSNorm(8), detached=Detached(8), frozen=LlamaRMSNorm(8).requires_grad_(False))
    with context():
        report = replace_norms(model)
    assert [name for name, *_ in report] == ["llama", "frozen"]
    assert [one.requires_grad for one in model["frozen"].parameters()] == [False]


def test_models_in_half_precision_are_compared_in_single():
    model = block(llama=LlamaRMSNorm(8), gemma=GemmaRMSNorm(8), batch=torch_nn.BatchNorm1d(8)).bfloat16()
    report = replace_norms(model)
    assert [name for name, *_ in report] == ["llama", "gemma", "batch"]
    assert {tensor.dtype for tensor in model.parameters()} == {torch.bfloat16}


def test_a_block_that_is_named_after_its_norm_is_looked_into():
    class NormAndLinear(torch_nn.Module):
        def __init__(self):
            super().__init__()
            self.eps, self.gate = 1e-5, torch_nn.Parameter(torch.ones(8))
            self.norm, self.linear = torch_nn.LayerNorm(8), torch_nn.Linear(8, 8)

    report = replace_norms(torch_nn.Sequential(NormAndLinear()))
    assert [name for name, *_ in report] == ["0.norm"]
    assert report.left == report.missed == []
