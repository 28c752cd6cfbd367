"""The exact mode where nothing is at risk, on a fake GPU: asked after each step, by one launch and no more."""

import gc
import warnings

import numpy as np
import pytest
import torch
from engine.fake_driver import fake_driver
from engine.fake_torch import fake_home

from normlab import keeping, nn, ops
from normlab.engine import using
from normlab.nn import launched, room

COLUMNS = 97  # and one row: for which kernels have few threads, 64 a forward


@pytest.fixture(params=["recorded", "not recorded"])
def kept(monkeypatch, request):
    """How many columns `room.keep` kept, call by call: nothing where the shortcut was taken.

    Of a recorded forward the shortcut knows the signature by the recording; of others it has to ask.
    """
    fake_driver(monkeypatch)
    fake_home(monkeypatch)
    monkeypatch.setattr(keeping, "home_of", ops.home_of)
    monkeypatch.setattr(keeping, "device_name", lambda array: "cuda:0")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)  # a machine without a GPU cannot say
    for name in ("_rooms", "_steady"):
        monkeypatch.setattr(room, name, {})
    calls = []

    def keep(*given):
        result = room.keep(given[-1], given[:-1])
        calls.append(len(result.columns))
        return result

    monkeypatch.setattr(launched, "keep", keep)
    if request.param == "not recorded":
        monkeypatch.setattr(launched, "nothing_to_keep", lambda *given: room.nothing_to_keep(*given[:4], None, []))
    with using("simulator"), nn.engine("simulator"):
        yield calls


def gradients(norm, x):
    return torch.autograd.grad(norm(x), (x, *norm.parameters()), torch.ones(x.shape))


def norm_of(kind=nn.FusedLayerNorm):
    norm = kind(COLUMNS, memory_efficient="exact")
    with torch.no_grad():
        norm.weight.uniform_(0.5, 1.5)
    return norm


class Changes(torch.optim.SGD):
    """An optimizer whose step is whatever is done to the parameters in `step(change)`."""

    def __init__(self, *parameters):
        super().__init__(parameters, lr=1.0)

    @torch.no_grad()
    def step(self, change):
        for group in self.param_groups:
            for parameter in group["params"]:
                change(parameter)


@pytest.mark.parametrize("kind", [nn.FusedLayerNorm, nn.FusedRMSNorm])
def test_steps_of_an_optimizer_change_nothing_until_a_column_comes_near_risk(kept, kind, monkeypatch):
    norm = norm_of(kind)
    optimizer = Changes(norm.weight)
    monkeypatch.setattr(room, "_survey", lambda *given: None)  # whose answers come too late
    for _ in range(6):
        gradients(norm, torch.randn(1, COLUMNS, requires_grad=True))
        optimizer.step(lambda weight: weight.mul_(1.01))
    assert kept == [0, 0], "the first counts, and the second is recorded"
    optimizer.step(lambda weight: weight[:3].fill_(1.5e-5))  # near: at risk with a gamma half as large
    gradients(norm, torch.randn(1, COLUMNS, requires_grad=True))  # with the room of the GPU's last word; it asks again
    assert kept == [0, 0]
    optimizer.step(lambda weight: weight[:3].fill_(0.5e-5))
    gradients(norm, torch.randn(1, COLUMNS, requires_grad=True))
    assert kept == [0, 0, 8], "room in time, without a warning"


def test_whatever_else_changes_goes_the_long_way(kept):
    norm = norm_of()
    x = torch.randn(1, COLUMNS, requires_grad=True)
    for _ in range(4):
        gradients(norm, x)
    assert kept == [0, 0]
    with torch.no_grad():
        norm.weight[5] = 0
    gradients(norm, x)
    assert kept == [0, 0, 1], "changed by hand: counted"
    with torch.no_grad():
        norm.weight[5] = 1
    for _ in range(3):
        gradients(norm, x)
    assert kept == [0, 0, 1, 0], "counted, and known from before"
    before = norm.bias.data  # whose storage lives on
    norm.bias.data = torch.full((COLUMNS,), 1e6)  # another tensor, the same parameter and version
    gradients(norm, x)
    assert kept[4:] == [COLUMNS]
    assert before.any() == 0


@pytest.mark.parametrize(("name", "safe", "at_risk"), [("weight", 1, 0), ("bias", 0, 1e6)])
def test_another_storage_at_the_same_address_goes_the_long_way(name, safe, at_risk, kept):
    """Freed and allocated anew, its values are others though its address and version are the same."""
    norm, values = norm_of(), np.full(COLUMNS, safe, np.float32)
    getattr(norm, name).data = torch.from_numpy(values)
    x = torch.randn(1, COLUMNS, requires_grad=True)
    for _ in range(3):
        gradients(norm, x)
    assert kept == [0, 0]
    values[:2] = at_risk
    getattr(norm, name).data = torch.from_numpy(values)
    gradients(norm, x)
    assert kept == [0, 0, 2]


def test_a_longer_weight_at_the_same_place_goes_the_long_way(kept):
    """Cut out of one buffer, and by chance with the id of the one before it."""
    buffer = torch.ones(2 * COLUMNS)
    buffer[-3:] = 0
    short, long = (nn.FusedRMSNorm(size, memory_efficient="exact") for size in (COLUMNS, 2 * COLUMNS))
    for norm in (short, long):
        norm.weight = torch.nn.Parameter(buffer[: norm.weight.numel()])
    for _ in range(3):
        gradients(short, torch.randn(1, COLUMNS, requires_grad=True))
    assert kept == [0, 0]
    room._steady[id(long.weight)] = room._steady.pop(id(short.weight))
    gradients(long, torch.randn(1, 2 * COLUMNS, requires_grad=True))
    assert kept == [0, 0, 3]


def test_a_norm_without_the_bias_of_another_one_keeps_its_own_answer(kept):
    rms, layer = norm_of(nn.FusedRMSNorm), norm_of()
    layer.weight = rms.weight
    x = torch.randn(1, COLUMNS, requires_grad=True)
    for _ in range(3):
        gradients(rms, x)
    assert len(kept) == 2
    gradients(layer, x)
    gradients(rms, x)
    assert len(kept) == 3


def test_another_eps_or_dtype_asks_another_question(kept):
    norm = norm_of()
    x = torch.randn(1, COLUMNS, requires_grad=True)
    for _ in range(3):
        gradients(norm, x)
    norm.eps = 1e-6
    gradients(norm, x)
    gradients(norm, x.half().detach().requires_grad_())
    assert len(kept) == 4


def test_a_change_that_no_counter_shows_is_told_by_the_gpu(kept):
    norm = norm_of()
    x = torch.randn(1, COLUMNS, requires_grad=True)
    for _ in range(3):
        gradients(norm, x)
    norm.weight.data[:2] = 0
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(room.QUIET + 2):  # one of them asks, and the next one has the answer
            gradients(norm, x)
    assert "2 columns came to risk sooner" in str(told[0].message)
    assert len(told) == 1
    assert kept == [0, 0]
    Changes(torch.nn.Parameter(torch.ones(1))).step(lambda other: other.mul_(1))
    gradients(norm, x)
    assert kept == [0, 0, 8]


def test_the_gpu_is_asked_where_it_may_have_another_answer(kept, monkeypatch):
    asked = []

    def asking(*given):
        ask = keeping.asking(*given)
        return lambda: (asked.append(True), ask())

    monkeypatch.setattr(room, "asking", asking)
    norm = norm_of()
    x = torch.randn(1, COLUMNS, requires_grad=True)

    def asks():
        asked.clear()
        gradients(norm, x)
        return bool(asked)

    assert [asks() for _ in range(3)] == [False, False, True], "the first two keep, which asks, too"
    assert [asks() for _ in range(room.QUIET + 2)] == [False] * room.QUIET + [True, False]
    Changes(norm.weight).step(lambda weight: weight.mul_(1.01))
    assert [asks(), asks()] == [True, False]
    Changes(torch.nn.Parameter(torch.ones(1))).step(lambda other: other.mul_(1))
    assert [asks(), asks()] == [True, False], "another optimizer's step: of a float32 master weight, it may be"
    Changes(norm.weight).step(lambda weight: weight.mul_(1.01))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert [asks(), asks()] == [True, True], "a graph repeats what it captured"
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert [asks(), asks()] == [True, False], "and has not run yet"
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert [asks(), asks()] == [True, True], "also between steps"
    assert kept == [0, 0]


@pytest.mark.parametrize("without", ["weight", "bias"])
def test_a_parameter_that_is_gone_is_not_one_that_was_never_there(kept, without):
    """The GPU would read memory that somebody else may have by now."""
    norm = norm_of()
    x = torch.randn(1, COLUMNS, requires_grad=True)
    for _ in range(3):
        gradients(norm, x)
    setattr(norm, without, None)
    gc.collect()
    gradients(norm, x)
    assert len(kept) == 3, "the long way"


def test_what_is_known_of_parameters_that_are_gone_goes_too(kept):
    norm = norm_of()
    for _ in range(3):
        gradients(norm, torch.randn(1, COLUMNS, requires_grad=True))
    assert len(room._steady) == 1
    del norm
    gc.collect()
    gradients(norm_of(), torch.randn(1, COLUMNS, requires_grad=True))
    assert room._steady == {}


def test_what_threads_share_changes_under_the_lock_alone(kept, monkeypatch):
    """One may note new parameters while another one forgets those that are gone."""

    class Watched(dict):
        def __setitem__(self, key, value):
            assert room._lock._is_owned()
            super().__setitem__(key, value)

        def __delitem__(self, key):
            assert room._lock._is_owned()
            super().__delitem__(key)

        def items(self):
            assert room._lock._is_owned()
            return super().items()

    def offered(self, real=room.Room.offered):
        assert room._lock._is_owned(), "or another thread counts between the versions and the room that goes with them"
        return real(self)

    monkeypatch.setattr(room, "_steady", Watched())
    monkeypatch.setattr(room.Room, "offered", offered)
    for _ in range(2):
        norm = norm_of()
        for _ in range(3):
            gradients(norm, torch.randn(1, COLUMNS, requires_grad=True))
        assert len(room._steady) == 1, "noted, and those before it gone"
        del norm
        gc.collect()


@pytest.mark.parametrize("changed", ["weight", "bias"])
def test_a_recorded_forward_is_known_by_addresses_and_versions(changed, kept):
    """As on a GPU, where a recording tells shapes, strides and dtypes."""
    norm, x = norm_of(), torch.randn(1, COLUMNS, requires_grad=True)
    for _ in range(3):
        gradients(norm, x)
    steady, recording = room._steady[id(norm.weight)], object()

    def asks(recording=recording, eps=norm.eps):
        pointers = [tensor.data_ptr() for tensor in (x, norm.weight, norm.bias)] if recording else []
        return steady.asked_again(x, norm.weight, norm.bias, eps, recording, [*pointers, 1, 2, 3])

    assert [asks(), asks()] == [True, True]
    Changes(norm.weight, norm.bias).step(lambda parameter: parameter.mul_(0.9))
    assert [asks(), asks()] == [True, True]
    assert [asks(object(), 2 * norm.eps), asks(), asks(None)] == [False, True, True]
    parameter = getattr(norm, changed)
    own = parameter.data
    parameter.data = own.clone()
    assert [asks(None), asks(), asks()] == [False, False, False]
    parameter.data = own
    assert asks()
    with torch.no_grad():
        parameter[3] = 0
    assert [asks(), asks(object())] == [False, False]


def test_after_a_second_run_behind_a_hidden_step_there_may_be_something_to_keep(kept, monkeypatch):
    """A checkpoint's second run saves what the first one did; the next forward takes the GPU's new word."""
    norm, x = norm_of(), torch.randn(1, COLUMNS, requires_grad=True)
    for _ in range(3):
        gradients(norm, x)
    known = room._steady[id(norm.weight)].room
    known.hidden = True
    Changes(torch.nn.Parameter(torch.ones(1))).step(lambda other: other.mul_(1))
    monkeypatch.setattr(room, "_second_run", lambda: True)
    gradients(norm, x)
    known.counts[0] = 3 * room.NEAR
    monkeypatch.setattr(room, "_second_run", lambda: False)
    gradients(norm, x)
    assert kept == [0, 0, 8]


def test_a_parameter_whose_versions_begin_anew_goes_the_long_way(kept):
    """The same address, storage and version as when nothing was at risk; between them it was changed and counted."""
    norm = norm_of()
    norm.bias = torch.nn.Parameter(torch.zeros(COLUMNS))
    x = torch.randn(1, COLUMNS, requires_grad=True)
    for _ in range(4):
        gradients(norm, x)
    with torch.no_grad():
        norm.bias[5] = 1e6
    gradients(norm, x)
    norm.bias = torch.nn.Parameter(norm.bias.data)
    assert norm.bias._version == 0
    gradients(norm, x)
    assert kept == [0, 0, 1, 1]


def test_what_another_norm_counted_is_known(kept):
    """Of a parameter of the same storage, which has versions of its own."""
    norm, other = (nn.FusedRMSNorm(COLUMNS, memory_efficient="exact") for _ in range(2))
    other.weight = torch.nn.Parameter(norm.weight.data)
    before = norm.weight._version
    x = torch.randn(1, COLUMNS, requires_grad=True)
    for _ in range(4):
        gradients(norm, x)
    with torch.no_grad():
        other.weight[5] = 0
        other.weight[6] = 0
    assert (norm.weight._version, other.weight._version) == (before, 2)
    gradients(other, x)
    gradients(norm, x)
    assert kept == [0, 0, 2, 2]


def test_a_forward_in_the_step_of_another_parameter_of_the_same_storage_goes_the_long_way(kept):
    norm, x = nn.FusedRMSNorm(COLUMNS, memory_efficient="exact"), torch.randn(1, COLUMNS, requires_grad=True)
    for _ in range(4):
        gradients(norm, x)
    alias = torch.nn.Parameter(norm.weight.data)
    with torch.no_grad():
        for _ in range(norm.weight._version + 1):
            alias[5] = 0

    def closure():
        with torch.enable_grad():
            gradients(norm, x)
            gradients(norm, x)
        return 0.0

    torch.optim.SGD([alias], lr=0.0).step(closure)
    assert kept == [0, 0, 1, 1], "counted, and room for that"


def test_its_parameters_may_be_swapped(kept):
    """`torch.utils.swap_tensors`, by which modules move where `torch.__future__` says so, refuses weak references."""
    norm, x = norm_of(), torch.randn(1, COLUMNS, requires_grad=True)
    for _ in range(3):
        gradients(norm, x)
    assert len(room._steady) == 1
    other = torch.nn.Parameter(torch.zeros(COLUMNS))
    torch.utils.swap_tensors(norm.weight, other)
    gradients(norm, x)
    assert kept[-1] == COLUMNS, "counted anew"
