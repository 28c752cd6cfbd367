"""The modules are torch.nn's in all but their forward; running statistics, in whatever mode, are what torch's are."""

import copy
import pickle
from inspect import signature

import numpy as np
import pytest
import torch
from draws import paired
from torch.nn import functional

from normlab import nn

BATCH = [("BatchNorm1d", (4, 3)), ("BatchNorm1d", (4, 3, 5)), ("BatchNorm2d", (2, 3, 4, 2))]
BATCH += [("BatchNorm3d", (2, 3, 2, 2, 2))]
INSTANCE = [("InstanceNorm1d", (3, 5)), ("InstanceNorm1d", (4, 3, 5)), ("InstanceNorm2d", (2, 3, 4, 2))]
INSTANCE += [("InstanceNorm3d", (2, 3, 2, 2, 2))]


def pair(name, *arguments, **options):
    """normlab's module and torch's, with the same random parameters."""
    torch.manual_seed(0)
    mine, theirs = getattr(nn, name)(*arguments, **options), getattr(torch.nn, name)(*arguments, **options)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter)
    mine.load_state_dict(theirs.state_dict())
    return mine, theirs


def assert_same(mine, theirs, x, **tolerance):
    """Outputs and buffers are the same."""
    torch.testing.assert_close(mine(x), theirs(x), **tolerance)
    for (name, one), (other_name, other) in zip(mine.named_buffers(), theirs.named_buffers(), strict=True):
        assert name == other_name
        torch.testing.assert_close(one, other, **tolerance)


@pytest.mark.parametrize("name", [*dict(BATCH + INSTANCE), "GroupNorm", "LayerNorm", "RMSNorm"])
def test_a_forward_has_torch_s_keyword(name):
    mine, theirs = (list(signature(getattr(library, name).forward).parameters) for library in (nn, torch.nn))
    assert mine == theirs


@pytest.mark.parametrize(
    ("norm", "tracked", "affine", "momentum"), paired(BATCH + INSTANCE, [True, False], [True, False], [0.1, 1.0, None])
)
def test_running_statistics_in_training_and_in_evaluation(norm, tracked, affine, momentum):
    name, shape = norm
    mine, theirs = pair(name, 3, momentum=momentum, affine=affine, track_running_stats=tracked)
    assert isinstance(mine, type(theirs))
    assert mine.extra_repr() == theirs.extra_repr()
    for _ in range(3):
        assert_same(mine, theirs, torch.randn(shape) + 2)
    if tracked:
        assert mine.running_mean.abs().sum() > 0 or momentum is None  # instance norm takes None for 0
        if name.startswith("BatchNorm"):
            assert mine.num_batches_tracked == 3
    kept = {key: value.clone() for key, value in mine.state_dict().items()}
    assert_same(mine.eval(), theirs.eval(), torch.randn(shape) + 2)
    assert all(torch.equal(mine.state_dict()[key], value) for key, value in kept.items())


@pytest.mark.parametrize("name", ["BatchNorm1d", "InstanceNorm1d"])
def test_tracking_can_be_switched_off_and_on_as_in_torch(name):
    mine, theirs = pair(name, 3, track_running_stats=True)
    for tracking, training in ((False, True), (False, False), (True, True)):
        for norm in (mine, theirs):
            norm.track_running_stats = tracking
            norm.train(training)
        assert_same(mine, theirs, torch.randn(4, 3, 5) + 2)


def test_a_number_of_groups_may_be_numpy_s_and_not_a_bool():
    x, groups = torch.randn(2, 6, 4), np.gcd(4, 6)
    model = torch.nn.Sequential(torch.nn.GroupNorm(groups, 6))
    want = model(x)
    nn.replace_norms(model)
    assert torch.equal(model(x), want)
    assert torch.equal(nn.group_norm(x, torch.tensor(2)), nn.group_norm(x, 2))
    with pytest.raises(TypeError, match="must be int, not bool"):
        nn.group_norm(x, True)


def test_running_statistics_are_updated_in_place_and_noticed():
    norm = nn.BatchNorm2d(3)
    place, version = norm.running_var.data_ptr(), norm.running_var._version
    norm(torch.randn(2, 3, 2, 2))
    assert norm.running_var.data_ptr() == place
    assert norm.running_var._version > version
    assert norm.running_var.grad_fn is None
    with torch.inference_mode():
        norm(torch.randn(2, 3, 2, 2))
    assert norm.num_batches_tracked == 2


def test_running_statistics_of_the_kernels_are_those_of_pytorch_s_operations():
    for norm in (nn.batch_norm, nn.instance_norm):
        found = []
        for world in ("auto", "simulator"):
            torch.manual_seed(0)
            x, running = torch.randn(3, 4, 5) + 2, (torch.zeros(4), torch.ones(4))
            with nn.engine(world):
                norm(x, *running, None, None, True, 0.3)
                found.append((*running, norm(x, *running, None, None, False)))
        torch.testing.assert_close(*found)


@pytest.mark.parametrize(
    ("groups", "shape", "world"), paired([1, 2], [(2, 0, 3), (0, 0, 3), (2, 0), (2, 0, 3, 4)], ["auto", "simulator"])
)
def test_a_group_norm_of_no_channels_is_empty_or_an_error_as_in_torch(groups, shape, world):
    try:
        functional.group_norm(torch.randn(shape), groups)
    except RuntimeError as error:  # since 2.14
        with nn.engine(world), pytest.raises(RuntimeError, match=f"^{error}$"):
            nn.group_norm(torch.randn(shape), groups)
        return
    results = []
    for function in (nn.group_norm, functional.group_norm):
        x, weight = torch.randn(shape, requires_grad=True), torch.ones(0, requires_grad=True)
        with nn.engine(world):
            output = function(x, groups, weight, weight)
            output.sum().backward()
        results.append((output, x.grad, weight.grad))
    torch.testing.assert_close(*results)
    compiled = torch.compile(nn.group_norm, fullgraph=True, backend="aot_eager")  # torch's own raises
    assert compiled(x, groups).shape == shape
    torch.compiler.reset()


def test_half_inputs_with_float32_parameters_and_statistics():
    mine, theirs = pair("BatchNorm1d", 3)
    x = torch.randn(16, 3, 7).bfloat16()
    assert mine.running_mean.dtype == torch.float32
    assert_same(mine, theirs, x, rtol=2e-2, atol=2e-2)  # dtypes, too


def test_autocast_changes_nothing():
    norm, x = nn.GroupNorm(2, 4), torch.randn(2, 4, 3)
    with torch.autocast("cpu", torch.bfloat16):
        output = norm(x)
    torch.testing.assert_close(output, norm(x), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["BatchNorm2d", "InstanceNorm2d", "GroupNorm", "LayerNorm", "RMSNorm"])
def test_state_dicts_go_both_ways_and_modules_pickle_copy_and_move(name):
    arguments = {"GroupNorm": (2, 4), "LayerNorm": (4, 1e-4, True, False), "RMSNorm": (4,)}.get(name, (4,))
    mine, theirs = pair(name, *arguments)
    x = torch.randn(2, 4, 3, 4)
    mine(x)
    theirs.load_state_dict(mine.state_dict())
    assert_same(mine, theirs, x)
    for other in (pickle.loads(pickle.dumps(mine)), copy.deepcopy(mine), mine.double()):
        assert type(other) is type(mine)
        assert other.state_dict().keys() == theirs.state_dict().keys()
    assert mine(x.double()).dtype == torch.float64
    mine.reset_parameters()
    torch.testing.assert_close([one.float() for one in mine.parameters()], [*type(theirs)(*arguments).parameters()])


def test_a_norm_without_torch_s_defaults():
    mine, theirs = pair("LayerNorm", (3, 4), 1e-2, bias=False)
    x = torch.randn(5, 3, 4)
    torch.testing.assert_close(mine(x), theirs(x))
    torch.testing.assert_close(nn.RMSNorm(4)(x), torch.nn.RMSNorm(4)(x))  # eps=None
    torch.testing.assert_close(nn.GroupNorm(3, 3, 1e-2, affine=False)(x), functional.group_norm(x, 3, eps=1e-2))


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm"])
def test_layer_and_rms_norm_give_the_input_s_dtype_as_torch_s(name, half):
    mine, theirs = pair(name, 8)
    for dtype in (torch.float32, half):
        for input_dtype in (torch.float32, half):
            if name == "LayerNorm" and (dtype, input_dtype) == (half, torch.float32):
                continue  # torch takes no such mix
            x = torch.randn(3, 8).to(input_dtype)
            tolerance = 1e-5 if input_dtype == torch.float32 else 2e-2
            torch.testing.assert_close(mine.to(dtype)(x), theirs.to(dtype)(x), rtol=tolerance, atol=tolerance)
    x = torch.randn(3, 8)
    if name == "LayerNorm":
        with pytest.raises(RuntimeError, match="mixed dtype"):
            mine.double()(x)
    else:
        torch.testing.assert_close(mine.double()(x), theirs.double()(x))


def test_a_small_network_learns_what_it_learns_with_torch_s_norms():
    losses = []
    for library in (nn, torch.nn):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3), library.BatchNorm2d(8), torch.nn.ReLU(),
            torch.nn.Conv2d(8, 8, 3), library.GroupNorm(4, 8), torch.nn.ReLU(),
            torch.nn.Conv2d(8, 4, 3), library.InstanceNorm2d(4, affine=True),
            torch.nn.Flatten(), torch.nn.Linear(16, 1),
        ).to(memory_format=torch.channels_last)  # fmt: skip
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        x = torch.randn(8, 3, 8, 8).to(memory_format=torch.channels_last)
        y = x[:, :1, 0, 0]
        for _ in range(8):
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
        losses.append((loss.item(), model.eval()(x).detach()))
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-3, atol=1e-3)
    assert losses[0][0] < 0.5
