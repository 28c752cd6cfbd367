"""PyTorch's OpInfo samples for its norms, functional and native, through ours in every mode and dtype.

Whole inputs normalised, eps 0.5 and -0.5, no rows, no values, parameters missing, momentum beyond 1, and so on.
"""

import copy

import pytest
import torch
from foreign.samples import MODES, ON_GPU, ROUNDINGS, close, differentiated, operators, placed, wide

from normlab import nn


def native_layer_norm(x, shape, weight, bias, eps, **mode):
    return nn.layer_norm(x, shape, weight, bias, eps, **mode)


def native_batch_norm(x, weight, bias, *rest):
    *tracked, training, momentum, eps = rest
    return nn.batch_norm(x, *(tracked or (None, None)), weight, bias, training, momentum, eps)


def batch_norm_with_update(x, weight, bias, running_mean, running_var, momentum, eps):
    return nn.batch_norm(x, running_mean, running_var, weight, bias, True, momentum, eps)


def native_group_norm(x, weight, bias, samples, channels, values, groups, eps):
    return nn.group_norm(x, groups, weight, bias, eps)


ROWS = {
    "nn.functional.layer_norm": nn.layer_norm,
    "native_layer_norm": native_layer_norm,
    "nn.functional.rms_norm": nn.rms_norm,
}
FAMILY = {
    "nn.functional.batch_norm": nn.batch_norm,
    "native_batch_norm": native_batch_norm,
    "_native_batch_norm_legit": native_batch_norm,
    "_batch_norm_with_update": batch_norm_with_update,
    "nn.functional.instance_norm": nn.instance_norm,
    "nn.functional.group_norm": nn.group_norm,
    "native_group_norm": native_group_norm,
}
OPERATORS = operators(ROWS | FAMILY)


def of(names):
    """Return a parametrization by those of the operators that were found."""
    found = [one for one in OPERATORS if one.name in names]
    return pytest.mark.parametrize("operator", found, ids=lambda one: one.name)


def results(function, sample):
    """Return output, gradients, and the running statistics afterwards."""
    args, kwargs = copy.deepcopy((sample.args, sample.kwargs))
    tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
    leaves = [one for one in (sample.input, *tensors) if one.requires_grad]
    output = function(sample.input, *args, **kwargs)
    output = output if isinstance(output, torch.Tensor) else output[0]  # native: beside it the statistics
    return [*differentiated(output, leaves), *(one for one in tensors if not one.requires_grad)]


def hold(got, operator, sample, amplification=1.0):
    """Assert that results are as near to torch's of float64 as torch's are."""
    close(got, results(operator.op, sample), results(operator.op, sample.transform(wide)), amplification)


def of_the_recomputed(output, sample) -> float:
    """Return how many times larger the output's rounding is in x's gradient than in torch's.

    It is divided by gamma in x̂ = (y - beta) / gamma, and x̂ stands twice in the gradient: x̂ mean(g x̂).
    """
    _, weight, *_ = [*sample.args, None, None]
    weight = sample.kwargs.get("weight", weight)
    if weight is None or not output.numel():
        return 1.0
    return 2 * max(1.0, float((output.double() / weight.detach().double()).abs().nan_to_num(0, 0, 0).max()))


def shapes(sample):
    """Return what tells samples apart except their tensors' values."""
    given = {"input": sample.input, **dict(enumerate(sample.args)), **sample.kwargs}
    return str({name: getattr(one, "shape", one) for name, one in given.items()})


def test_the_samples_were_found():
    missing = set(ROWS | FAMILY) - {operator.name for operator in OPERATORS}
    assert missing <= {"native_group_norm"}, "of which torch 2.11 has no samples"


@pytest.mark.parametrize("memory_efficient", MODES)
@pytest.mark.parametrize("dtype", ROUNDINGS, ids=str)
@of(ROWS)
def test_layer_and_rms_norms_give_torch_s_values_and_gradients(operator, dtype, memory_efficient):
    def ours(*args, **kwargs):
        return ROWS[operator.name](*args, **kwargs, memory_efficient=memory_efficient)

    count = 0
    for sample in operator.reference_inputs("cpu", dtype, requires_grad=True):
        count += 1
        got = results(ours, sample)
        hold(got, operator, sample, of_the_recomputed(got[0], sample) if memory_efficient is True else 1.0)
    assert count >= 6


@pytest.mark.parametrize("dtype", ROUNDINGS, ids=str)
@of(FAMILY)
@pytest.mark.parametrize(
    ("device", "engine"), [("cpu", "auto"), ("cpu", "simulator"), pytest.param("cuda", "auto", marks=ON_GPU)]
)
def test_batch_instance_and_group_norms_give_torch_s_values_and_gradients(operator, dtype, device, engine):
    count, simulated = 0, set()
    samples = operator.sample_inputs if engine == "simulator" else operator.reference_inputs
    for sample in samples("cpu", dtype, requires_grad=True):
        count += 1
        if engine == "simulator":
            if (alike := shapes(sample)) in simulated:  # torch gives each of group_norm's four times
                continue
            simulated.add(alike)
        with nn.engine(engine):
            got = results(FAMILY[operator.name], sample.transform(lambda given: placed(given, device)))
        hold(got, operator, sample)
    assert count >= 9


@pytest.mark.parametrize("operator", [one for one in OPERATORS if one.error_inputs_func], ids=lambda one: one.name)
def test_wrong_inputs_raise_torch_s_errors(operator):
    for wrong in operator.error_inputs("cpu"):
        sample = wrong.sample_input
        with pytest.raises(wrong.error_type, match=wrong.error_regex):
            (ROWS | FAMILY)[operator.name](sample.input, *sample.args, **sample.kwargs)
