"""The exact mode's memory on a GPU: as many columns as were at risk or near it, told by the GPU, never waited for."""

import gc
import threading
import warnings
import weakref

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import normlab.nn
from normlab import engine, layer_norm_forward, rms_norm_forward
from normlab.keeping import Kept
from normlab.nn import FusedLayerNorm, launched, room


@pytest.fixture(autouse=True)
def _simulated(monkeypatch):
    monkeypatch.setattr(room, "_rooms", {})
    with engine.using("simulator"):
        yield


def keep(weight, bias=None, own_bias=None):
    """own_bias: of which the bias is what autocast has made."""
    x = torch.randn(2, len(weight))
    _, mean, invvar = layer_norm_forward(x, len(weight), weight, bias, 1e-5, step="thread_per_row")  # of two threads
    return room.keep(
        (weight, bias if own_bias is None else own_bias), (x, mean, invvar, len(weight), weight, bias, 1e-5)
    )


def step(weight, change):
    """Change a parameter as an optimizer does."""

    class Changed(torch.optim.SGD):
        @torch.no_grad()
        def step(self):
            change(weight)

    Changed([weight], lr=1.0).step()


def test_the_first_forward_keeps_as_many_as_there_are_and_the_next_those_near_too():
    weight = torch.ones(40)
    weight[:3] = 0
    weight[10:17] = 1.5e-5  # near: at risk with a gamma half as large
    assert keep(weight).columns.tolist() == [0, 1, 2]
    assert keep(weight).columns.tolist() == [0, 1, 2], "the same parameters have the same room: checkpointing needs it"
    step(weight, lambda weight: weight.mul_(1))
    columns = keep(weight).columns.tolist()
    assert columns == [0, 1, 2, *[-1] * 13]  # 3 + 7, rounded up to 16
    step(weight, lambda weight: weight[10:17].fill_(0.5e-5))
    assert keep(weight).columns.tolist() == [0, 1, 2, *range(10, 17), *[-1] * 6]


def keep_as(weight, dtype, eps):
    x = torch.randn(2, len(weight))
    parameter = weight.to(dtype)  # as autocast makes it; the room is the weight's
    _, invvar = rms_norm_forward(x, len(weight), parameter, eps, step="thread_per_row")
    return room.keep((weight, None), (x, None, invvar, len(weight), parameter, None, eps))


def test_another_dtype_or_eps_has_columns_at_risk_of_its_own():
    """A weight may be subnormal in float16 alone, or below the larger eps of another norm that it is tied to."""
    weight = torch.ones(40)
    weight[:5] = 1e-7
    for change in range(3):
        kept = [keep_as(weight, torch.float32, 1e-12), keep_as(weight, torch.float16, 1e-12)]
        kept += [keep_as(weight, torch.float32, 1e-6)]
        assert [one.columns[one.columns >= 0].tolist() for one in kept] == [[], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]
        if change:
            step(weight, lambda weight: weight.mul_(1))


def test_a_forward_of_no_rows_says_nothing_of_the_next():
    weight, none = torch.zeros(40), torch.empty(0)
    kept = room.keep((weight, None), (torch.empty(0, 40), none, none, 40, weight, None, 1e-5))
    assert kept.values.shape == (0, 0)
    for _ in range(2):  # without a warning
        assert len(keep(weight).columns) == 40


def test_without_columns_near_risk_there_is_no_room():
    weight = torch.ones(40)
    assert [len(keep(weight).columns) for _ in range(3)] == [0, 0, 0]


def test_columns_that_find_no_room_are_told_and_have_it_the_next_time():
    weight = torch.ones(40)
    keep(weight), keep(weight)
    step(weight, lambda weight: weight[:5].zero_())
    assert len(keep(weight).columns) == 0
    step(weight, lambda weight: weight.mul_(1))
    with pytest.warns(RuntimeWarning, match="5 columns came to risk sooner than room was made"):
        assert keep(weight).columns.tolist() == [0, 1, 2, 3, 4, -1, -1, -1]
    keep(weight)  # told once


def test_a_parameter_that_is_gone_is_forgotten():
    weight, other = torch.ones(8), torch.ones(16)
    keep(weight), keep(weight.detach())  # the same memory
    assert len(room._rooms) == 1
    del weight
    gc.collect()
    keep(other)
    assert len(room._rooms) == 1
    keep(other[8:])  # not the same
    assert len(room._rooms) == 2


def test_no_memory_of_a_parameter_that_is_gone_is_freed_before_the_kernels_that_write_into_it_are_done(monkeypatch):
    weight = torch.ones(8)
    keep(weight)
    (made,) = room._rooms.values()
    made.device = torch.device("cuda", 1)
    waited = []
    counts = weakref.ref(made.counts)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: waited.append((device, counts() is not None)))
    del weight, made
    gc.collect()
    keep(torch.ones(16))
    assert waited == [(torch.device("cuda", 1), True)]
    assert counts() is None


def test_threads_that_meet_at_a_new_parameter_share_its_room(monkeypatch):
    weight, both, told = torch.zeros(8), threading.Barrier(2, timeout=60), []
    x, ones = torch.randn(2, 8), torch.ones(2)

    def keep_columns(*given, counts, capacity=None):
        both.wait()  # both have found no room
        told.append(counts)
        return Kept(torch.arange(8), x)

    monkeypatch.setattr(room, "keep_columns", keep_columns)
    threads = [
        threading.Thread(target=room.keep, args=((weight, None), (x, None, ones, 8, weight, None, 1e-5)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first, second = told
    assert first is second is next(iter(room._rooms.values())).counts


def test_a_room_s_capacity_is_never_seen_with_other_versions_than_its_own(monkeypatch):
    """While it changes, another thread's forward waits."""
    weight, seen = torch.nn.Parameter(torch.ones(40)), []
    keep(weight)

    class Watched(room.Room):
        def __setattr__(self, name, value):
            super().__setattr__(name, value)
            if name == "versions":
                thread = threading.Thread(target=lambda: seen.append(len(keep(weight).columns)))
                thread.start()
                thread.join(0.2)  # it waits for the lock
                waiting.append(thread)

    waiting = []
    (made,) = room._rooms.values()
    made.__class__ = Watched
    with torch.no_grad():
        weight[:5] = 0
    assert len(keep(weight).columns) == 5
    for thread in waiting:
        thread.join()
    assert set(seen) == {5}


def test_what_changes_otherwise_than_by_an_optimizer_is_counted_at_once():
    weight, bias = torch.nn.Parameter(torch.ones(40)), torch.nn.Parameter(torch.zeros(40))
    assert [len(keep(weight, bias).columns) for _ in range(2)] == [0, 0]
    with torch.no_grad():
        weight[:5] = 0
    assert keep(weight, bias).columns.tolist() == [0, 1, 2, 3, 4]
    with torch.no_grad():
        bias[20:] = 9
    assert len(keep(weight, bias).columns) == 25
    with torch.no_grad():
        weight[5] = 0
    step(weight, lambda weight: weight[0].fill_(0))  # does not hide the change before it
    assert len(keep(weight, bias).columns) == 26


def test_a_change_that_no_counter_shows_is_told():
    weight = torch.nn.Parameter(torch.ones(40))
    keep(weight)
    weight.data[3] = 0
    assert len(keep(weight).columns) == 0
    with pytest.warns(RuntimeWarning, match="1 columns came to risk sooner"):
        keep(weight)


def test_parameters_gathered_from_shards_have_their_room_though_no_counter_shows_a_step():
    """FSDP2's: the optimizer has the shards, and the gathered parameter keeps its storage and its version."""

    class Shard(torch.nn.Parameter):
        pass

    weight, shard = torch.nn.Parameter(torch.ones(40)), Shard(torch.ones(20))

    def gather(value):
        step(shard, lambda shard: shard.mul_(1))
        weight.data[10:17] = value

    assert len(keep(weight).columns) == 0
    gather(1.5e-5)  # near risk
    assert len(keep(weight).columns) == 0
    gather(0.5e-5)
    with warnings.catch_warnings(action="error"):
        assert keep(weight).columns.tolist() == [*range(10, 17), -1]


def warned(weight, *biases) -> tuple[list[int], int]:
    """The columns that a forward keeps, and how many warnings it gave."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        return keep(weight, *biases).columns.tolist(), len(given)


def test_parameters_copied_from_master_weights_have_their_room_again_after_one_warning():
    """Megatron's, DeepSpeed's and apex's: the optimizer has the float32 master, and `.data` counts no change."""
    weight, master = torch.nn.Parameter(torch.ones(40)), torch.nn.Parameter(torch.ones(40))
    seen = [warned(weight)]
    for columns in (3, 3, 3, 5, 5, 20, 20):
        step(master, lambda master, columns=columns: master[:columns].fill_(0))
        weight.data.copy_(master.data)
        seen.append(warned(weight))
    three, five, twenty = [[*range(columns), *[-1] * (-columns % 8)] for columns in (3, 5, 20)]
    assert seen == [
        ([], 0), ([], 0), (three, 1), (three, 0), (five, 0), (five, 0), ([*range(8)], 0), (twenty, 1)
    ]  # fmt: skip
    step(master, lambda master: master[20:30].fill_(1.5e-5))  # near risk
    weight.data.copy_(master.data)
    assert warned(weight) == (twenty, 0)
    step(master, lambda master: master[20:30].fill_(0.5e-5))
    weight.data.copy_(master.data)
    assert warned(weight) == ([*range(30), -1, -1], 0), "its steps are followed now, and that was near risk"
    step(master, lambda master: master.mul_(1))
    with torch.no_grad():
        weight[:30] = 0
    assert [warned(weight) for _ in range(2)] == [([*range(30)], 0)] * 2, "counted, and the same until the next step"


@pytest.mark.parametrize("listed", [False, True])
def test_a_bias_that_autocast_rounds_has_its_room_again_though_the_weight_is_frozen(listed):
    """listed: the optimizer has the frozen weight, too, and does not change it."""
    weight, bias = torch.nn.Parameter(torch.ones(40), requires_grad=False), torch.nn.Parameter(torch.zeros(40))
    optimizer = torch.optim.SGD([weight, bias] if listed else [bias], lr=1.0)
    seen = [warned(weight, bias.detach().clone(), bias)]
    for _ in range(4):
        bias.grad = torch.zeros(40)
        bias.grad[:3] = -20
        optimizer.step()
        seen.append(warned(weight, bias.detach().clone(), bias))
    three = [0, 1, 2, *[-1] * 5]
    assert seen == [([], 0), ([], 0), (three, 1), (three, 0), (three, 0)]


def test_parameters_of_an_optimizer_keep_their_room_while_another_steps():
    """Of a generator, while its discriminator learns: what it lost has shown in the counters, and will again."""
    weight, other = torch.nn.Parameter(torch.ones(40)), torch.nn.Parameter(torch.ones(40))
    keep(weight)
    step(weight, lambda weight: weight[:3].fill_(0))
    keep(weight)
    step(other, lambda other: other.mul_(1))
    assert warned(weight) == ([], 1)
    step(weight, lambda weight: weight.mul_(1))
    assert warned(weight) == ([0, 1, 2, *[-1] * 5], 1), "the warning is of the forward before"


def test_parameters_that_autocast_rounds_are_counted_once():
    """Each forward has another bias then, but the same parameter is behind it."""
    weight, bias = torch.nn.Parameter(torch.ones(40)), torch.nn.Parameter(torch.zeros(40))
    weight.data[0] = 0
    keep(weight, torch.zeros(40), bias)
    step(weight, lambda weight: weight.mul_(1))
    columns = keep(weight, torch.zeros(40), bias).columns
    assert len(columns) == 8, "the number at risk, rounded up: it was not counted again"


def test_a_bias_that_is_no_parameter_is_counted_again_when_it_has_changed():
    weight, bias = torch.ones(40), torch.zeros(40)
    assert [len(keep(weight, bias).columns) for _ in range(2)] == [0, 0]
    bias[:3] = 1e6
    assert keep(weight, bias).columns.tolist() == [0, 1, 2]


def test_a_row_and_a_column_of_a_table_have_rooms_of_their_own():
    table = torch.ones(40, 40)
    table[0, :3] = 0
    assert [len(keep(weight).columns) for weight in (table[:, 0], table[0], table[:, 0], table[0])] == [1, 3, 1, 3]


def test_a_bias_that_is_another_each_time_is_counted_each_time():
    """Of a conditional norm: freed, it leaves its place to the next one."""
    weight = torch.nn.Parameter(torch.ones(40))
    for at_risk in (0, 3, 0, 5):
        bias = torch.zeros(40)
        bias[:at_risk] = 1e6
        assert len(keep(weight, bias).columns) == at_risk
        del bias
        gc.collect()  # the simulator's cycles
    assert len(room._rooms) == 1, "those before it gone"


def test_the_rooms_counts_are_the_host_s_whatever_the_default_device():
    weight = torch.nn.Parameter(torch.ones(40))
    with torch.device("meta"):
        assert room.Room(weight).counts.device.type == "cpu"


def test_an_optimizer_of_sparse_parameters_is_let_alone():
    weight = torch.nn.Parameter(torch.ones(40))
    keep(weight)
    sparse = torch.nn.Parameter(torch.eye(3).to_sparse())
    sparse.grad = torch.eye(3).to_sparse()
    torch.optim.SGD([sparse], lr=0.1).step()


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """The simulator's norms ask for room, too."""
    monkeypatch.setattr(
        launched, "keep", lambda x, mean, invvar, *rest: room.keep(rest[-1], (x, mean, invvar, *rest[:-1]))
    )


def columns_kept(monkeypatch):
    """How many columns each forward keeps, and whether they were counted for it: a list that grows."""
    seen, real = [], room.keep_columns

    def keep_columns(*given, **options):
        kept = real(*given, **options)
        seen.append((len(kept.columns), "capacity" not in options))
        return kept

    monkeypatch.setattr(room, "keep_columns", keep_columns)
    return seen


def test_under_autocast_a_bias_changed_by_hand_is_counted_again(as_on_a_gpu, monkeypatch):
    norm, seen = FusedLayerNorm(40, memory_efficient="exact"), columns_kept(monkeypatch)
    for value in (0, 0, 1e3, 1e3):
        with torch.no_grad():
            norm.bias.fill_(value)
        with normlab.nn.engine("simulator"), torch.autocast("cpu", torch.bfloat16):
            norm(torch.randn(3, 40, requires_grad=True))
    assert seen == [(0, True), (0, True), (40, True), (40, True)], "each by hand: counted again"


def test_norms_that_share_a_weight_have_rooms_of_their_own(as_on_a_gpu, monkeypatch):
    norms = [FusedLayerNorm(40, memory_efficient="exact") for _ in range(2)]
    norms[1].weight = norms[0].weight
    with torch.no_grad():
        norms[0].bias.fill_(1e3)
    optimizer = torch.optim.SGD([norms[0].weight, *(norm.bias for norm in norms)], lr=0.0)
    seen = columns_kept(monkeypatch)
    for _ in range(3):
        with normlab.nn.engine("simulator"), torch.autocast("cpu", torch.bfloat16):
            for norm in norms:
                norm(torch.randn(3, 40, requires_grad=True)).sum().backward()
        optimizer.step()
    assert seen == [(40, True), (0, True), *[(40, False), (0, False)] * 2]


def test_a_checkpointed_forward_saves_the_same_when_it_is_run_again(as_on_a_gpu):
    """Between the two the GPU has said that more columns are near risk."""
    norm = FusedLayerNorm(40, memory_efficient="exact")
    with torch.no_grad():
        norm.weight[:3] = 0
        norm.weight[5:20] = 1.5e-5
    x = torch.randn(3, 40, requires_grad=True)
    with normlab.nn.engine("simulator"):
        for _ in range(2):
            checkpoint(norm, x, use_reentrant=False).sum().backward()
            step(norm.weight, lambda weight: weight.mul_(1))
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("between", ["a second forward", "another optimizer's step"])
def test_a_checkpointed_forward_saves_the_same_though_columns_lost_their_room(between, as_on_a_gpu):
    """A pipeline's second micro-batch notices it, or a discriminator learns before the generator's backward."""
    norm, other = FusedLayerNorm(40, memory_efficient="exact"), torch.nn.Parameter(torch.ones(1))
    with torch.no_grad():
        norm.weight[:8] = 0

    def forward() -> torch.Tensor:
        return checkpoint(norm, torch.randn(3, 40, requires_grad=True), use_reentrant=False).sum()

    def train() -> None:
        losses = [forward()]
        if between == "a second forward":
            losses.append(forward())
        else:
            step(other, lambda other: other.mul_(1))
        for loss in losses:
            loss.backward()
        step(other, lambda other: other.mul_(1))
        forward().backward()

    with normlab.nn.engine("simulator"):
        forward().backward()
        norm.weight.data[8:13] = 0
        with pytest.warns(RuntimeWarning, match="5 columns came to risk sooner"):
            train()
    (made,) = room._rooms.values()
    assert made.capacity == 16


def test_a_reentrant_checkpoint_has_its_room_though_it_runs_in_backwards_only(as_on_a_gpu):
    norm, other = FusedLayerNorm(40, memory_efficient="exact"), torch.nn.Parameter(torch.ones(1))

    def forward_and_backward() -> None:
        checkpoint(norm, torch.randn(3, 40, requires_grad=True), use_reentrant=True).sum().backward()
        step(other, lambda other: other.mul_(1))

    with normlab.nn.engine("simulator"):
        forward_and_backward()
        norm.weight.data[:5] = 0
        forward_and_backward()
        with pytest.warns(RuntimeWarning, match="5 columns came to risk sooner"):
            forward_and_backward()
        forward_and_backward()
    (made,) = room._rooms.values()
    assert made.capacity == 8
