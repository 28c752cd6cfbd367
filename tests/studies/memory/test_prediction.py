"""What is saved: counted by storages, and predicted; the two are equal, byte for byte."""

import pytest
import torch
from draws import paired
from memory_cases import decoder, tokens
from torch.nn.functional import linear

from normlab import nn
from normlab.studies.memory import prediction
from normlab.studies.memory.model import Shape
from normlab.studies.memory.saved import counting
from normlab.studies.memory.variants import MEASURED, Switch

DTYPES = ("float16", "bfloat16", "float32", "float64")
SIZES = [(1, 64, 1, 5), (2, 64, 2, 16), (2, 256, 3, 9), (3, 384, 2, 8)]


@pytest.mark.parametrize(("sizes", "dtype", "norm"), paired(SIZES, DTYPES, ["rms", "layer"]))
def test_as_many_bytes_are_saved_as_predicted(sizes, dtype, norm):
    shape = Shape(*sizes, norm, dtype)
    model, batch = decoder(shape), tokens(shape)
    switch = Switch(model)
    for variant in MEASURED:
        switch(variant)
        with counting([*model.parameters(), *batch]) as saved:
            loss = model(*batch)
        assert sum(saved.values()) == prediction.total(shape, variant, "cpu"), variant
        del loss


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_saving_outputs_frees_the_residual_stream_and_nothing_else(norm):
    shape = Shape(2, 128, 2, 8, norm, "bfloat16")
    by_input, by_output = (prediction.saved(shape, variant, "cpu") for variant in ("False", "True"))
    freed = {role: by_input[role] - by_output[role] for role in by_input}
    mean = 4 * 16 * 5 if norm == "layer" else 0
    assert freed == dict.fromkeys(freed, 0) | {"norm inputs": 5 * 16 * 128 * 2, "statistics": mean}


def test_the_large_model_is_foretold_to_save_two_gigabytes_less():
    less = {v: prediction.total(prediction.LLAMA, v, "cuda") for v in MEASURED}
    assert less["torch.nn"] == less["False"]
    assert less["exact, fused"] == less["exact"]
    assert less["False"] - less["exact"] == less["False"] - less["True"] == 65 * 4096 * 4096 * 2
    assert less["False"] - less["True"] > 2.0e9


def test_a_fused_residual_moves_five_matrices_less_for_each_block():
    shape = Shape(2, 128, 2, 8, "rms", "bfloat16")
    apart, fused = (prediction.moved(shape, fused) for fused in (False, True))
    matrix = 2 * 8 * 128 * 2
    assert (apart, fused) == (2 * 22 * matrix, 2 * 17 * matrix)


def test_a_norm_before_a_linear_layer_saves_its_output_once_and_its_input_only_where_asked_to():
    weight = torch.randn(8, 8, requires_grad=True)
    bytes_of = {}
    for memory_efficient in (False, True, "exact"):
        stream = torch.randn(16, 8, requires_grad=True) * 1.0
        with counting([weight]) as saved:
            out = linear(nn.rms_norm(stream, 8, None, 1e-5, memory_efficient), weight)
        bytes_of[memory_efficient] = sum(saved.values())
        out.sum().backward()
    assert bytes_of == {False: 2 * 16 * 8 * 4 + 16 * 4, True: 16 * 8 * 4 + 16 * 4, "exact": 16 * 8 * 4 + 16 * 4}


def test_columns_at_risk_are_counted_too():
    stream = torch.randn(16, 8, requires_grad=True) * 1.0
    weight = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0], requires_grad=True)
    with counting([weight]) as saved:
        output = nn.rms_norm(stream, 8, weight, 1e-5, "exact")
    assert sum(saved.values()) == 16 * 8 * 4 + 16 * 4 + 3 * 4 + 3 * 16 * 4  # output, invvar, columns, their x̂
    del output


def test_views_of_one_storage_count_once_and_those_of_what_is_held_never():
    held = torch.randn(4, 6, requires_grad=True)
    x = torch.randn(6, 4, requires_grad=True) * 1.0
    with counting([held]) as saved:
        product = (x[:3] @ held) * (x[3:] @ held)
    factors = 2 * 3 * 6 * 4
    assert sum(saved.values()) == 6 * 4 * 4 + factors
    product.sum().backward()
    assert held.grad is not None


def test_the_least_room_is_parameters_gradients_and_what_is_saved():
    shape = Shape(1, 64, 1, 4, "rms", "float32")
    assert prediction.peak(shape, "cpu") == 8 * shape.parameters + prediction.total(shape, "torch.nn", "cpu")
