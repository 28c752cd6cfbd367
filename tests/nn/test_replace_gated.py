"""replace_norms of norms with a gate: what transformers' models have, and what only looks like it."""

import copy
import pickle
from inspect import signature

import pytest
import torch
from nn.decoder_layers import GemmaRMSNorm
from torch import nn as torch_nn
from torch.nn.functional import silu

from normlab import nn
from normlab.nn import FusedRMSNorm, GatedRMSNorm, replace_norms

HALVES = (torch.bfloat16, torch.float16)


class Qwen3NextRMSNormGated(torch_nn.Module):
    """As transformers writes it: the gate after the norm, three roundings, the input's dtype."""

    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = torch_nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        hidden_states = self.weight * hidden_states.to(input_dtype)
        hidden_states = hidden_states * self.activated(gate.to(torch.float32))
        return hidden_states.to(input_dtype)

    def activated(self, gate):
        return silu(gate)


class MambaRMSNormGated(Qwen3NextRMSNormGated):
    """As transformers writes it: the gate before the norm or missing, groups, and the wider dtype."""

    def __init__(self, hidden_size, group_size, eps=1e-6):
        super().__init__(hidden_size, eps)
        self.group_size = group_size

    def forward(self, hidden_states, gate=None):
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        if gate is not None:
            hidden_states = hidden_states * silu(gate.to(torch.float32))
        groups = hidden_states.view(*hidden_states.shape[:-1], -1, self.group_size)
        variance = groups.pow(2).mean(-1, keepdim=True)
        groups = groups * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * groups.view(hidden_states.shape).to(input_dtype)


class SigmoidRMSNormGated(Qwen3NextRMSNormGated):
    """As Kimi Linear's."""

    def activated(self, gate):
        return torch.sigmoid(gate)


class ConstantRMSNormGated(Qwen3NextRMSNormGated):
    def activated(self, gate):
        return silu(gate.detach())


class LeakyRMSNormGated(MambaRMSNormGated):
    """Without a gate it is another norm."""

    def forward(self, hidden_states, gate=None):
        return super().forward(hidden_states, gate) * (1 if gate is not None else 2)


class WiderRMSNormGated(Qwen3NextRMSNormGated):
    """The gate's dtype decides."""

    def forward(self, hidden_states, gate):
        return super().forward(hidden_states, gate).to(torch.promote_types(hidden_states.dtype, gate.dtype))


def block(**norms) -> torch_nn.Module:
    with torch.no_grad():
        for norm in norms.values():
            norm.weight.normal_(generator=torch.Generator().manual_seed(0))
    return torch_nn.ModuleDict(norms)


def drawn(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for _ in range(2)]


def results(norm, x, gate):
    output = norm(x, gate=gate)
    leaves = [one for one in (x, gate, norm.weight) if one is not None]
    return output, torch.autograd.grad(output.float().pow(2).sum(), leaves)


KINDS = {"after": lambda: Qwen3NextRMSNormGated(8, 1e-3), "before": lambda: MambaRMSNormGated(8, 8, 1e-3)}


@pytest.mark.parametrize("mode", [False, True, "exact"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_norm_with_a_gate_is_replaced_and_computes_the_same(kind, mode):
    model = block(gated=KINDS[kind]())
    old, keys = copy.deepcopy(model["gated"]), list(model.state_dict())
    assert replace_norms(model, mode) == [("gated", type(old), GatedRMSNorm)]
    norm = model["gated"]
    assert isinstance(norm, type(old))
    assert list(model.state_dict()) == keys
    assert str(signature(norm.forward)).startswith("(hidden_states, gate")
    assert repr(norm).endswith(f"memory_efficient=False, norm_before_gate={kind == 'after'})")
    for one in (norm, copy.deepcopy(norm), pickle.loads(pickle.dumps(norm))):
        for scale in (1, 1e-2):
            x, gate = drawn(3, 8)
            torch.testing.assert_close(results(one, x * scale, gate), results(old, x * scale, gate))
    with nn.engine("simulator"):
        torch.testing.assert_close(results(norm, x, gate), results(old, x, gate), rtol=1e-4, atol=1e-5)
    compiled = torch.compile(norm, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(hidden_states=x, gate=gate), old(x, gate))
    again = replace_norms(model, mode)
    assert (list(again), again.left, again.missed, model["gated"]) == ([], [], [], norm)


def test_a_gate_may_be_missing_where_it_could_be_before():
    model = block(after=KINDS["after"](), before=KINDS["before"]())
    old = copy.deepcopy(model)
    replace_norms(model)
    x, gate = drawn(2, 3, 8)
    for given in ((x,), (x, None)):
        torch.testing.assert_close(model["before"](*given), old["before"](x))
    for wrong in ({}, {"x": gate}, {"hidden_states": gate}):
        with pytest.raises(TypeError):
            model["after"](x, **wrong)
    for name in ("after", "before"):
        with pytest.raises(TypeError):
            model[name](gate=gate)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("parameters", [torch.float32, None])
@pytest.mark.parametrize("kind", KINDS)
def test_its_output_keeps_the_dtype_it_had_whatever_the_gate_s(kind, parameters, half):
    model = block(gated=KINDS[kind]()).to(parameters or half)
    old = copy.deepcopy(model["gated"])
    replace_norms(model)
    for given, other in ((half, half), (half, torch.float32), (torch.float32, half)):
        x, gate = drawn(4, 8, dtype=given)[0], drawn(4, 8, dtype=other)[1]
        got, want = results(model["gated"], x, gate), results(old, x, gate)
        assert [one.dtype for one in (got[0], *got[1])] == [one.dtype for one in (want[0], *want[1])]
        torch.testing.assert_close(got[0], want[0], rtol=2**-6, atol=2**-6)
        with torch.autocast("cpu", dtype=half):
            assert model["gated"](x, gate).dtype == old(x, gate).dtype


def test_a_wider_gate_is_not_rounded_to_the_input_s_dtype():
    norm = block(gated=KINDS["before"]())
    replace_norms(norm)
    x, gate = torch.randn(4, 8).bfloat16(), 1 + 2.0**-12 * torch.randn(4, 8)  # in bfloat16 the gate is 1
    want = nn.gated_rms_norm(x.float(), gate, norm["gated"].weight, 1e-3, norm_before_gate=False)
    assert torch.equal(norm["gated"](x, gate), want)
    assert not torch.equal(norm["gated"](x, torch.ones_like(gate)), want)


def test_another_gate_or_groups_stay_and_the_report_says_why():
    model = block(
        groups=MambaRMSNormGated(8, 4), sigmoid=SigmoidRMSNormGated(8), constant=ConstantRMSNormGated(8),
        leaky=LeakyRMSNormGated(8, 8), wider=WiderRMSNormGated(8),
    )  # fmt: skip
    report = replace_norms(model)
    assert report == []
    reasons = {name: why for name, _, why in report.left}
    assert list(reasons) == list(model)
    for name in ("groups", "sigmoid"):
        assert "; as an RMSNorm with a gate it computes something else: off by " in reasons[name]
    assert "the gradient of its gate is not there, unlike normlab's" in reasons["constant"]
    assert "without a gate" in reasons["leaky"]
    assert "its output has another dtype" in reasons["wider"]


def test_qwen3_next_s_two_norms_are_replaced():
    """The zero-centred one, with 1 + weight, as Gemma's."""
    model = block(zero_centred=GemmaRMSNorm(8), gated=Qwen3NextRMSNormGated(8))
    assert [new for *_, new in replace_norms(model)] == [FusedRMSNorm, GatedRMSNorm]
