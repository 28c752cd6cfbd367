"""PyTorch's ModuleInfo samples for its norms, through ours: by torch.nn's names, by apex's, and by `replace_norms`.

A module is called twice, the second time with running statistics that are not the initial ones; what is compared is its
text, its output, the gradients of its input and parameters, and its buffers afterwards.
"""

import copy
from functools import partial

import pytest
import torch
from foreign.samples import MODES, ON_GPU, ROUNDINGS, close, differentiated, modules, placed, wide

from normlab import nn

ROWS = {"LayerNorm": nn.FusedLayerNorm, "RMSNorm": nn.FusedRMSNorm}
DIMENSIONS = ("1d", "2d", "3d")
NAMES = (*ROWS, "GroupNorm", *(kind + size for kind in ("BatchNorm", "InstanceNorm") for size in DIMENSIONS))
INFOS = modules(NAMES)
TRAINING = pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
DTYPES = pytest.mark.parametrize("dtype", ROUNDINGS, ids=str)


def of(names):
    """Return a parametrization by those of the modules that were found."""
    found = [one for one in INFOS if one.module_cls.__name__ in names]
    return pytest.mark.parametrize("info", found, ids=lambda one: one.module_cls.__name__)


def results(module, given, place):
    """Return the second call's output and gradients, and the buffers."""
    x, *rest = (place(one) for one in given.args)
    for _ in range(2):
        output = module(x, *rest, **given.kwargs)
    return [*differentiated(output, [x, *module.parameters()]), *module.buffers()]


def examine(info, dtype, training, make, mode=False, device="cpu"):
    """Hold each sample's module, which make makes of torch's, a mode and torch's arguments, to torch's."""
    torch.manual_seed(0)
    samples = info.module_inputs_func(info, "cpu", dtype, requires_grad=True, training=training)
    assert len(samples) >= 3
    for sample in samples:
        made, given = sample.constructor_input, sample.forward_input
        theirs = info.module_cls(*made.args, dtype=dtype, **made.kwargs).train(training)
        for parameter in theirs.parameters():
            torch.nn.init.uniform_(parameter, 0.5 if mode is True else -0.5, 1.5)  # True is wrong for small weights
        mine = make(theirs, mode, *made.args, dtype=dtype, device=device, **made.kwargs).train(training)
        truth = copy.deepcopy(theirs).double()
        got = results(mine, given, partial(placed, device=device))
        close(got, results(theirs, given, partial(placed, device="cpu")), results(truth, given, wide))


def by_name(theirs, mode, *args, **kwargs):
    """Make a module by torch.nn's name."""
    mine = getattr(nn, type(theirs).__name__)(*args, **kwargs)
    assert repr(mine.train(theirs.training)) == repr(theirs)
    mine.load_state_dict(theirs.state_dict())
    return mine


def by_apex_s_name(theirs, mode, *args, **kwargs):
    """Make a module by apex's name, in a mode."""
    mine = ROWS[type(theirs).__name__](*args, memory_efficient=mode, **kwargs)
    mine.load_state_dict(theirs.state_dict())
    return mine


def replaced(theirs, mode, *_, device, **__):
    """Make a model of the module, and replace its norms."""
    model = torch.nn.Sequential(copy.deepcopy(theirs)).to(device)
    nn.replace_norms(model, mode)
    return model


def test_the_samples_were_found():
    assert {one.module_cls.__name__ for one in INFOS} == set(NAMES)


@TRAINING
@DTYPES
@of(NAMES)
def test_a_module_by_torch_s_name_is_torch_s(info, dtype, training):
    examine(info, dtype, training, by_name)


@TRAINING
@DTYPES
@pytest.mark.parametrize("mode", MODES)
@of(ROWS)
def test_a_module_by_apex_s_name_gives_torch_s_values_in_every_mode(info, mode, dtype, training):
    examine(info, dtype, training, by_apex_s_name, mode)


@TRAINING
@DTYPES
@pytest.mark.parametrize("mode", MODES)
@of(NAMES)
def test_a_replaced_module_gives_torch_s_values_in_every_mode(info, mode, dtype, training):
    examine(info, dtype, training, replaced, mode)


@TRAINING
@of(("BatchNorm1d", "InstanceNorm3d"))  # which are quick
def test_a_module_by_simulated_kernels_is_torch_s(info, training):
    with nn.engine("simulator"):
        examine(info, torch.float32, training, by_name)


@ON_GPU
@TRAINING
@DTYPES
@of(NAMES)
def test_a_module_on_a_gpu_is_torch_s(info, dtype, training):
    examine(info, dtype, training, by_name, device="cuda")


@pytest.mark.parametrize(
    "info", [one for one in INFOS if one.module_error_inputs_func], ids=lambda one: one.module_cls.__name__
)
def test_wrong_inputs_raise_torch_s_errors(info):
    for wrong in info.module_error_inputs_func(info, "cpu", torch.float32, requires_grad=False, training=True):
        made, given = wrong.module_error_input.constructor_input, wrong.module_error_input.forward_input
        with pytest.raises(wrong.error_type, match=wrong.error_regex):
            getattr(nn, info.module_cls.__name__)(*made.args, **made.kwargs)(*given.args, **given.kwargs)
