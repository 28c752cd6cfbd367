"""PyTorch's own sample inputs for its norms: whole inputs normalised, eps 0.5 and -0.5, no rows, parameters missing."""

import pytest
import torch
from nn.norms import MODES
from nn.torch_samples import operators

from normlab import nn

OURS = {
    "nn.functional.layer_norm": nn.layer_norm,
    "native_layer_norm": nn.layer_norm,
    "nn.functional.rms_norm": nn.rms_norm,
}
OPERATORS = operators(OURS)


def gradients(function, sample) -> list[torch.Tensor]:
    """The output and the gradients of all of a sample's tensors."""
    leaves = [sample.input, *(given for given in sample.args if isinstance(given, torch.Tensor))]
    output = function(sample.input, *sample.args, **sample.kwargs)
    output = output[0] if isinstance(output, tuple) else output
    grad_output = torch.linspace(-1, 2, output.numel()).reshape(output.shape).to(output)
    return [output.detach(), *torch.autograd.grad(output, leaves, grad_output)]


def test_the_samples_were_found():
    assert {operator.name for operator in OPERATORS} == set(OURS)


@pytest.mark.parametrize("memory_efficient", MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
def test_torch_s_own_samples(operator, dtype, memory_efficient):
    def ours(*args, **kwargs):
        return OURS[operator.name](*args, **kwargs, memory_efficient=memory_efficient)

    tolerance = {torch.float32: 1e-3, torch.float64: 1e-6, torch.bfloat16: 6e-2}[dtype]
    count = 0
    for sample in operator.sample_inputs("cpu", dtype, requires_grad=True):
        count += 1
        eps = sample.kwargs.get("eps", sample.args[3] if len(sample.args) > 3 else 1e-5)
        if memory_efficient is True and eps == 0.5:
            continue  # apex's clamp changes weights below eps
        for one, other in zip(gradients(ours, sample), gradients(operator.op, sample), strict=True):
            largest = float(other.abs().nan_to_num().max()) if other.numel() else 0.0
            atol = tolerance * max(1.0, largest)
            torch.testing.assert_close(one, other, rtol=tolerance, atol=atol, equal_nan=True)
    assert count >= 6


@pytest.mark.parametrize("operator", [one for one in OPERATORS if one.error_inputs_func], ids=lambda one: one.name)
def test_torch_s_own_wrong_inputs(operator):
    for wrong in operator.error_inputs("cpu"):
        sample = wrong.sample_input
        with pytest.raises(wrong.error_type, match=wrong.error_regex):
            OURS[operator.name](sample.input, *sample.args, **sample.kwargs)
