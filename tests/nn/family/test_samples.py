"""PyTorch's own sample inputs for its functions and modules: no values, momentum beyond 1, negative eps, and so on.

What is right is what PyTorch makes of them on the CPU, where its operations, the simulated kernels and a GPU compute.
"""

import copy

import pytest
import torch
from nn.torch_samples import modules, operators

from normlab import nn

NAMES = ("batch_norm", "instance_norm", "group_norm")
OPERATORS = operators([f"nn.functional.{name}" for name in NAMES])
BATCH = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d")
MODULES = (*BATCH, "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "GroupNorm", "LayerNorm", "RMSNorm")
INFOS = modules([getattr(torch.nn, name) for name in MODULES])
SIMULATED = [info for info in INFOS if info.module_cls.__name__ in ("BatchNorm1d", "InstanceNorm3d")]  # which are quick
ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU and a torch built for CUDA")
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10, torch.bfloat16: 6e-2}


def close(got, want, dtype):
    """Equal patterns of NaN, and all else up to what torch may be off; the bounds are asserted in test_bounds."""
    tolerance = TOLERANCE[dtype]
    for one, other in zip(got, want, strict=True):
        one = one.cpu()
        largest = float(other.abs().nan_to_num().max()) if other.numel() else 0.0
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * max(1.0, largest), equal_nan=True)


def placed(given, device):
    """A tensor as a leaf on a device; all else as it is."""
    if not isinstance(given, torch.Tensor):
        return given
    return given.detach().to(device).requires_grad_(given.requires_grad)


def differentiated(output, leaves):
    """The output and its gradients."""
    dy = torch.linspace(-1, 2, output.numel()).reshape(output.shape).to(output)
    gradients = torch.autograd.grad(output, leaves, dy, allow_unused=True) if output.requires_grad else ()
    return [output.detach(), *(one for one in gradients if one is not None)]


def function_results(function, sample):
    """Output, gradients, and the running statistics afterwards."""
    args, kwargs = copy.deepcopy((sample.args, sample.kwargs))
    tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
    leaves = [sample.input, *(one for one in tensors if one.requires_grad)]
    results = differentiated(function(sample.input, *args, **kwargs), leaves)
    return [*results, *(one for one in tensors if not one.requires_grad)]


def shapes(sample):
    """What tells samples apart but for their tensors' values."""
    given = {"input": sample.input, **dict(enumerate(sample.args)), **sample.kwargs}
    return str({name: getattr(one, "shape", one) for name, one in given.items()})


def test_the_samples_were_found():
    assert {one.name for one in OPERATORS} == {f"nn.functional.{name}" for name in NAMES}
    assert {one.module_cls.__name__ for one in INFOS} == set(MODULES)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("operator", OPERATORS, ids=lambda one: one.name)
@pytest.mark.parametrize(
    ("device", "engine"), [("cpu", "auto"), ("cpu", "simulator"), pytest.param("cuda", "auto", marks=ON_GPU)]
)
def test_functions(operator, dtype, device, engine):
    ours = getattr(nn, operator.name.removeprefix("nn.functional."))
    count, simulated = 0, set()
    for sample in operator.sample_inputs("cpu", dtype, requires_grad=True):
        count += 1
        if engine == "simulator":
            if (alike := shapes(sample)) in simulated:  # torch gives each of group_norm's four times
                continue
            simulated.add(alike)
        with nn.engine(engine):
            got = function_results(ours, sample.transform(lambda given: placed(given, device)))
        close(got, function_results(operator.op, sample), dtype)
    assert count >= 9


def examine_module(info, dtype, training, device="cpu"):
    """Hold our module to theirs: its text, its results, and its buffers afterwards."""
    samples = info.module_inputs_func(info, "cpu", dtype, requires_grad=True, training=training)
    assert len(samples) >= 3
    for sample in samples:
        made, given = sample.constructor_input, sample.forward_input
        theirs = info.module_cls(*made.args, dtype=dtype, **made.kwargs)
        mine = getattr(nn, info.module_cls.__name__)(*made.args, dtype=dtype, device=device, **made.kwargs)
        assert repr(mine) == repr(theirs)
        for parameter in theirs.parameters():
            torch.nn.init.normal_(parameter)
        mine.load_state_dict(theirs.state_dict())
        results = []
        for module, place in ((mine.train(training), device), (theirs.train(training), "cpu")):
            x, *rest = (placed(one, place) for one in given.args)
            for _ in range(2):  # the second time with running statistics that are not the initial ones
                output = module(x, *rest, **given.kwargs)
            results.append([*differentiated(output, [x, *module.parameters()]), *module.buffers()])
        close(*results, dtype)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("info", INFOS, ids=lambda one: one.module_cls.__name__)
def test_modules(info, dtype, training):
    examine_module(info, dtype, training)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("info", SIMULATED, ids=lambda one: one.module_cls.__name__)
def test_modules_by_simulated_kernels(info, training):
    with nn.engine("simulator"):
        examine_module(info, torch.float32, training)


@ON_GPU
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("info", INFOS, ids=lambda one: one.module_cls.__name__)
def test_modules_on_a_gpu(info, dtype, training):
    examine_module(info, dtype, training, "cuda")


@pytest.mark.parametrize("operator", [one for one in OPERATORS if one.error_inputs_func], ids=lambda one: one.name)
def test_wrong_inputs_of_functions(operator):
    for wrong in operator.error_inputs("cpu"):
        sample = wrong.sample_input
        with pytest.raises(wrong.error_type, match=wrong.error_regex):
            getattr(nn, operator.name.removeprefix("nn.functional."))(sample.input, *sample.args, **sample.kwargs)


@pytest.mark.parametrize(
    "info", [one for one in INFOS if one.module_error_inputs_func], ids=lambda one: one.module_cls.__name__
)
def test_wrong_inputs_of_modules(info):
    for wrong in info.module_error_inputs_func(info, "cpu", torch.float32, requires_grad=False, training=True):
        made, given = wrong.module_error_input.constructor_input, wrong.module_error_input.forward_input
        with pytest.raises(wrong.error_type, match=wrong.error_regex):
            getattr(nn, info.module_cls.__name__)(*made.args, **made.kwargs)(*given.args, **given.kwargs)
