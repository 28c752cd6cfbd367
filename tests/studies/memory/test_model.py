"""The decoder: LLaMA's sizes, causal, with rotary positions, the same for the same seed."""

import pytest
import torch
from memory_cases import decoder, tokens

from normlab.studies.memory.model import Shape, rotary_tables, rotated
from normlab.studies.memory.prediction import LLAMA

LLAMA_PARAMETERS = 6_738_415_616  # of LLaMA-7B, whose vocabulary has 32,000 words
IGNORED = -100  # a target that cross entropy leaves out


def test_the_large_shape_is_llama_7b_but_for_the_vocabulary():
    assert (LLAMA.heads, LLAMA.inner, LLAMA.norms) == (32, 11008, 65)
    assert LLAMA.parameters + 2 * (32_000 - 256) * 4096 == LLAMA_PARAMETERS


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_a_model_has_as_many_parameters_as_its_shape_says(norm):
    shape = Shape(2, 256, 1, 4, norm, "float32")
    assert sum(parameter.numel() for parameter in decoder(shape).parameters()) == shape.parameters


def test_columns_that_do_not_divide_into_heads_of_128_are_one_head_and_odd_ones_are_refused():
    assert [Shape(1, hidden, 1, 1, "rms", "float32").heads for hidden in (2, 64, 128, 200, 384)] == [1, 1, 1, 1, 3]
    Shape(1, 200, 1, 1, "rms", "float32").check()
    with pytest.raises(ValueError, match="--hidden 127: an even number is needed, for rotary positions"):
        Shape(1, 127, 1, 1, "rms", "float32").check()


def test_a_byte_is_foretold_from_those_before_it_alone():
    shape = Shape(2, 256, 1, 8, "rms", "float64")
    model, (inputs, targets) = decoder(shape), tokens(shape)
    at_three = torch.full_like(targets, IGNORED)
    at_three[0, 3] = targets[0, 3]
    loss = model(inputs, at_three)
    for changed, same in ((4, True), (7, True), (3, False), (0, False)):
        other = inputs.clone()
        other[0, changed] += 1
        assert torch.equal(model(other, at_three), loss) == same


def test_two_bytes_that_change_places_change_the_loss():
    shape = Shape(1, 64, 1, 4, "rms", "float64")
    model, (inputs, targets) = decoder(shape), tokens(shape)
    last = torch.full_like(targets, IGNORED)
    last[0, 3] = targets[0, 3]
    assert model(inputs[:, [1, 0, 2, 3]], last) != model(inputs, last)


def test_a_rotated_product_depends_on_the_distance_only():
    q, k = torch.randn(2, 1, 16, dtype=torch.float64)
    tables = rotary_tables(12, 16, torch.empty(0, dtype=torch.float32))
    turned = rotated(q.expand(12, 16), tables) @ rotated(k.expand(12, 16), tables).T
    for distance in range(-11, 12):
        diagonal = turned.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-5)  # float32 tables
    assert turned[0].max() - turned[0].min() > 0.1
    torch.testing.assert_close(turned[0, 0], (q @ k.T)[0, 0])


def test_a_seed_sets_all_parameters_the_same_again():
    shape = Shape(1, 64, 1, 4, "layer", "bfloat16")
    model = decoder(shape)
    first = [parameter.clone() for parameter in model.parameters()]
    model(*tokens(shape)).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    model.reset(0)
    assert all(torch.equal(one, other) for one, other in zip(first, model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert {name for name, values in model.named_parameters() if (values == 1).all()} == {
        "blocks.0.attention_norm.weight", "blocks.0.mlp_norm.weight", "norm.weight"
    }  # fmt: skip
    model.reset(0, norm_weight=0.25)
    assert (model.norm.weight == 0.25).all()
    assert (model.norm.bias == 0).all()
