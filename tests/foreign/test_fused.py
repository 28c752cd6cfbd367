"""Decoders of transformers with `replace_norms(fuse_residual=True)` beside the untouched models."""

import copy
import pickle

import pytest
import torch
from foreign.architectures import DECODER, tokens, transformers
from foreign.samples import MODES, close, wide

from normlab.nn import replace_norms

TWO = DECODER | {"num_hidden_layers": 2}
HEADS = {"head_dim": 8}
PRE = ("input_layernorm", "passed"), ("post_attention_layernorm", "added")
SANDWICH = ("input_layernorm", "passed"), ("pre_feedforward_layernorm", "added")
DECODERS = {
    "Llama": ({}, PRE),
    "Mistral": ({}, PRE),
    "Qwen2": ({}, PRE),
    "Qwen3": (HEADS, PRE),  # and norms of the heads of queries and keys
    "Gemma": (HEADS, PRE),
    "Gemma2": (HEADS, SANDWICH),
    "Gemma3Text": (HEADS, SANDWICH),
    "Olmo2": ({}, None),  # norms before the additions: nothing to fuse
}


def drawn(name, kind="Model"):
    """An untouched model whose norms have a random gamma; Gemma's is 1 + weight."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**TWO | DECODERS[name][0], attn_implementation="eager")
    model = getattr(transformers, f"{name.removesuffix('Text') if kind != 'Model' else name}{kind}")(config)
    with torch.no_grad():
        for module in model.modules():
            if "Norm" in type(module).__name__:
                module.weight.uniform_(0.5, 1.5).sub_(1.0 if name.startswith("Gemma") else 0.0)
    return model


def fused(model, mode="exact"):
    """A copy with fused layers, and the report."""
    model = copy.deepcopy(model)
    return model, replace_norms(model, mode, fuse_residual=True)


def results(model, x, **options):
    """The output and the gradients of all parameters."""
    model.zero_grad()
    output = model(x, use_cache=False, **options)[0]
    (output * torch.linspace(-1, 2, output.numel()).reshape(output.shape).to(output)).sum().backward()
    return [output.detach(), *(parameter.grad for parameter in model.parameters())]


def hold(got, model, x):
    """Assert that results are those of an untouched model."""
    close(got, results(copy.deepcopy(model), x), results(copy.deepcopy(model).double(), wide(x)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", DECODERS)
def test_a_fused_decoder_has_the_untouched_one_s_outputs_and_gradients(name, mode):
    model, x = drawn(name), tokens()
    mine, report = fused(model, mode)
    sites = DECODERS[name][1]
    assert report.left == report.missed == []
    kind = f"{name.removesuffix('Text')}DecoderLayer"
    found = [(layer, kind.__name__, fused) for layer, kind, fused in report.fused]
    assert found == ([(f"layers.{index}", kind, sites) for index in range(2)] if sites else [])
    assert list(mine.state_dict()) == list(model.state_dict())
    for training in (True, False):
        hold(results(mine.train(training), x), model.train(training), x)


@pytest.mark.parametrize("name", ["Llama", "Qwen3", "Gemma3Text"])
def test_a_fused_decoder_compiles_checkpoints_and_is_pickled(name):
    model, x = drawn(name), tokens()
    mine, _ = fused(model)
    torch.compiler.reset()
    hold(results(torch.compile(mine, backend="aot_eager", fullgraph=True), x), model, x)
    hold(results(pickle.loads(pickle.dumps(mine)), x), model, x)
    for reentrant in (False, True):
        checkpointed = copy.deepcopy(mine).train()
        checkpointed.gradient_checkpointing_enable({"use_reentrant": reentrant})
        hold(results(checkpointed, x), model, x)


@pytest.mark.parametrize("name", ["Llama", "Gemma"])
def test_a_fused_decoder_generates_the_same_with_a_cache_and_has_the_same_hidden_states(name):
    model, x = drawn(name, "ForCausalLM").eval(), tokens()
    mine, report = fused(model)
    assert len(report.fused) == 2
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(mine.generate(x, use_cache=True, **options), model.generate(x, use_cache=True, **options))
    with torch.no_grad():
        states = [one(x, output_hidden_states=True).hidden_states for one in (mine, model)]
    assert len(states[0]) == len(states[1]) == 3
    torch.testing.assert_close(*states, rtol=1e-5, atol=1e-5)
