"""The exact mode on a GPU, here a fake one: counted once after each step, waited for once, and nothing is ever lost."""

import copy
import gc
import io
import threading
import warnings
import weakref
from types import SimpleNamespace

import pytest
import torch
from engine.fake_driver import fake_driver
from engine.fake_torch import fake_backend
from torch.utils.checkpoint import checkpoint

from normlab import nn
from normlab.engine import using
from normlab.nn import counting, exact

pytestmark = pytest.mark.usefixtures("quick_collections")
COLUMNS = 64  # and few rows, so that kernels have few threads to simulate; one column more takes a quarter more time


class Capture:
    """A stand-in for the capture of a CUDA graph: `with capture:`. `replay` launches again what lists columns inside.

    The rest of a graph needs its memory pool: see test_on_gpu.py.
    """

    def __init__(self, library):
        self.library, self.active, self.launched = library, False, []

    def __enter__(self):
        self.active, self.run = True, self.library.run
        self.library.run = lambda *launch: self.launched.append(launch)

    def __exit__(self, *_):
        self.active, self.library.run = False, self.run

    def replay(self):
        for kernel, *rest in self.launched:
            if kernel.py_func.__name__ == "choose_columns":
                self.library.run(kernel, *rest)


@pytest.fixture
def gpu(monkeypatch):
    """A fake GPU, where CPU tensors lie. `gpu.waits`: of how many norms each count took in; `gpu.capture`."""
    library = fake_driver(monkeypatch)
    library.torch = fake_backend(monkeypatch)
    library.capture = Capture(library)
    library.waits = []
    launch = counting.Survey.__call__

    def counted(self, step):
        library.waits.append(len(self.norms))
        return launch(self, step)

    monkeypatch.setattr(counting.Survey, "__call__", counted)
    monkeypatch.setattr(
        exact, "can_count", lambda output, owners: all(one is None or one.is_contiguous() for one in owners)
    )
    monkeypatch.setattr(exact, "_known", weakref.WeakSet())  # of this fake GPU, as the other two
    monkeypatch.setattr(exact, "_surveys", {})
    monkeypatch.setattr(counting, "_captured", [])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: library.capture.active)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(synchronize=lambda: None))
    with using("simulator"), nn.engine("simulator"):
        yield library


def norm_of(kind=nn.FusedLayerNorm, at_risk=(), columns=COLUMNS, dtype=torch.float32):
    norm = kind(columns, memory_efficient="exact").to(dtype)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.uniform_(0.5, 1.5)
        norm.weight[list(at_risk)] = 0
    return norm


@pytest.mark.parametrize("autocast", [False, True])
def test_a_norm_without_parameters_takes_an_eps_above_1(gpu, autocast):
    x = torch.randn(3, COLUMNS, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16, autocast):
        output = nn.layer_norm(x, (COLUMNS,), eps=2.0, memory_efficient="exact")
    want = torch.nn.functional.layer_norm(x, (COLUMNS,), eps=2.0)
    torch.testing.assert_close(output.float(), want, atol=1e-2 if autocast else 1e-6, rtol=0)
    grads = [torch.autograd.grad(one.float().square().sum(), x)[0] for one in (output, want)]
    torch.testing.assert_close(*grads, atol=5e-2 if autocast else 1e-5, rtol=0)


def true_gradients(norm, x, grad):
    """PyTorch's, in float64."""
    x, weight, *bias = operands = [one.detach().double().requires_grad_() for one in (x, *norm.parameters())]
    function = torch.nn.functional.layer_norm if isinstance(norm, nn.FusedLayerNorm) else torch.nn.functional.rms_norm
    return torch.autograd.grad(function(x, norm.normalized_shape, weight, *bias, eps=norm.eps), operands, grad.double())


def is_exact(norm, scale=1.0, rows=2):
    """Assert that gradients are right; return how many columns were kept, None for the input."""
    x = (scale * torch.randn(rows, norm.weight.numel())).to(norm.weight.dtype).requires_grad_()
    grad = torch.randn(x.shape).to(x.dtype)
    output = norm(x)
    mode = output.grad_fn.how[1][-1]
    kept = output.grad_fn.saved_tensors[4]
    got = torch.autograd.grad(output, (x, *norm.parameters()), grad)
    rounding = torch.finfo(x.dtype).eps
    for one, true in zip(got, true_gradients(norm, x, grad), strict=True):
        torch.testing.assert_close(one.double(), true, rtol=0, atol=40 * rounding * true.abs().max().item())
    return None if mode is False else 0 if kept is None else len(kept)


def changed(*norms, by=lambda weight: weight.mul_(1.01)):
    for norm in norms:
        by(norm.weight.detach())


class Hidden(torch.optim.SGD):
    """Steps as the fused optimizers do: no version counter shows them. Its step is what is done in `change`."""

    change = staticmethod(lambda weight: weight.mul_(1.01))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                self.change(parameter.data)


def hidden_step(*norms, change=Hidden.change):
    optimizer = Hidden([norm.weight for norm in norms], lr=1.0)
    optimizer.change = change
    optimizer.step()


def to_risk(*columns):
    return lambda weight: weight.index_fill_(0, torch.tensor(columns, dtype=torch.int64), 0)


# ---- when it counts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [nn.FusedLayerNorm, nn.FusedRMSNorm])
def test_the_first_forward_waits_and_the_others_do_not(gpu, kind):
    norm = norm_of(kind, at_risk=[3, 9])
    assert [is_exact(norm) for _ in range(3)] == [2, 2, 2]
    assert gpu.waits == [1]


def test_after_a_step_the_first_forward_counts_for_all_norms_and_waits_once(gpu):
    norms = [norm_of(), norm_of(at_risk=[1]), norm_of(columns=33)]
    for norm in norms:
        is_exact(norm)
    for step in range(2):
        gpu.waits.clear()
        hidden_step(*norms, change=to_risk(step, 20))
        assert [is_exact(norm) for norm in norms] == [step + 2, 3, step + 2]
        assert [is_exact(norm) for norm in norms] == [step + 2, 3, step + 2]
        assert gpu.waits == [3]


def test_a_norm_that_comes_later_is_counted_with_the_others_after_the_next_step(gpu):
    norms = [norm_of(), norm_of()]
    for count in (2, 3):
        hidden_step(*norms)
        for norm in norms:
            is_exact(norm)
        gpu.waits.clear()
        hidden_step(*norms)
        for norm in norms:
            is_exact(norm)
        assert gpu.waits == [count]
        norms.append(norm_of(at_risk=[1]))


def test_parameters_that_are_gone_are_not_read_with_those_of_the_others(gpu):
    norm, other = norm_of(), norm_of()
    for _ in range(2):  # from the second count on they are counted together
        is_exact(norm), is_exact(other)
        hidden_step(norm, other)
    norm.weight.untyped_storage().resize_(0)
    gpu.waits.clear()
    assert is_exact(other) == 0
    assert gpu.waits == [1]


def test_norms_of_several_kinds_are_counted_in_one_launch_each(gpu):
    norms = [norm_of(), norm_of(nn.FusedRMSNorm), norm_of(dtype=torch.float16), norm_of(nn.FusedRMSNorm)]
    for norm in norms:
        is_exact(norm)
    gpu.waits.clear()
    hidden_step(*norms, change=to_risk(7))
    assert [is_exact(norm) for norm in norms] == [1] * 4
    assert sorted(gpu.waits) == [1, 1, 2]


@pytest.mark.parametrize("kind", [nn.FusedLayerNorm, nn.FusedRMSNorm])
def test_compiled_norms_wait_once_after_each_step_too(gpu, kind):
    norms = torch.nn.Sequential(*[norm_of(kind) for _ in range(3)])
    optimizer = torch.optim.AdamW(norms.parameters(), lr=1e-5, fused=True)
    compiled = torch.compile(norms, backend="aot_eager", fullgraph=True)
    x = torch.randn(2, COLUMNS)
    for _ in range(3):
        gpu.waits.clear()
        compiled(x).sum().backward()
        optimizer.step()
    assert gpu.waits == [3]
    norms[1].weight.data[:2] = 0
    optimizer.step()
    grad = torch.autograd.grad(compiled(x).square().sum(), norms[1].weight)[0]
    for norm in norms:
        norm.memory_efficient = False
    torch.testing.assert_close(grad, torch.autograd.grad(norms(x).square().sum(), norms[1].weight)[0])
    torch.compiler.reset()


def test_a_step_s_hook_does_nothing_but_count_it(gpu):
    norm = norm_of()
    is_exact(norm)
    launches = len(gpu.calls)
    before = exact.Steps.count
    hidden_step(norm)
    assert (exact.Steps.count, len(gpu.calls)) == (before + 1, launches)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad])
@pytest.mark.parametrize("fused", [False, True])
def test_steps_of_torch_s_optimizers_are_seen(gpu, optimizer, fused):
    norm = norm_of()
    is_exact(norm)
    step = optimizer(norm.parameters(), lr=1e-3, fused=fused)
    for parameter in norm.parameters():
        parameter.grad = torch.zeros_like(parameter)
    norm.weight.data[[4, 5]] = 0  # a write that nothing shows, with a step after it
    step.step()
    with torch.no_grad():
        assert norm.weight[4].abs() < 1e-5
    assert is_exact(norm) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda norm: norm.load_state_dict({"weight": torch.zeros(COLUMNS), "bias": torch.ones(COLUMNS)}),
        lambda norm: torch.nn.init.zeros_(norm.weight),
        lambda norm: torch.utils.swap_tensors(norm.weight, torch.nn.Parameter(torch.zeros(COLUMNS))),
        lambda norm: setattr(norm, "weight", torch.nn.Parameter(torch.zeros(COLUMNS))),
        lambda norm: setattr(norm.weight, "data", torch.zeros(COLUMNS)),
        lambda norm: setattr(norm, "bias", torch.nn.Parameter(torch.full([COLUMNS], 1e3))),
        lambda norm: torch.nn.init.constant_(norm.bias, 1e3),
        lambda norm: norm.load_state_dict({k: v * 0 for k, v in norm.state_dict().items()}, assign=True),
        lambda norm: (norm.weight.data.zero_(), nn.recount(norm)),
    ],
    ids=["load", "init", "swap", "set", "data", "set bias", "init bias", "assign", "recount"],
)
def test_every_other_change_is_seen_by_the_next_forward(gpu, change):
    norm = norm_of()
    assert is_exact(norm) == 0
    change(norm)
    assert is_exact(norm) is None, "all columns are at risk, and the input is saved"


def test_gradients_may_accumulate_and_two_optimizers_step_in_turn(gpu):
    one, other = norm_of(), norm_of()
    for norm in (one, other):
        is_exact(norm)
    gpu.waits.clear()
    hidden_step(one, change=to_risk(1))
    assert [is_exact(one), is_exact(other), is_exact(one), is_exact(other)] == [1, 0, 1, 0]
    hidden_step(other, change=to_risk(2, 3))
    assert [is_exact(one), is_exact(other), is_exact(one), is_exact(other)] == [1, 2, 1, 2]
    assert gpu.waits == [2, 2]


def test_a_backward_after_a_later_count_has_the_columns_of_its_forward(gpu):
    norm, x = norm_of(at_risk=[2, 40]), torch.randn(2, COLUMNS, requires_grad=True)
    want = torch.autograd.grad(norm(x), x, torch.ones(x.shape))[0]
    output = norm(x)
    other = norm_of(at_risk=range(30))
    is_exact(other)  # counts all again, into a list of its own
    hidden_step(other)
    is_exact(other)
    torch.testing.assert_close(torch.autograd.grad(output, x, torch.ones(x.shape))[0], want, rtol=0, atol=0)


def test_master_weights_copied_into_data_after_the_step_are_seen(gpu):
    norm = norm_of(dtype=torch.bfloat16)
    master = torch.nn.Parameter(norm.weight.detach().float())
    optimizer = Hidden([master], lr=1.0)
    is_exact(norm)
    optimizer.change = to_risk(11)
    optimizer.step()
    norm.weight.data.copy_(master.data)
    assert is_exact(norm) == 1


def test_parameters_whose_memory_is_given_away_count_in_their_own_forward(gpu):
    """As FSDP does with what it has gathered: the storage is empty between uses, and refilled past all counters."""
    norm, other = norm_of(), norm_of()
    is_exact(norm), is_exact(other)
    storage, full = norm.weight.untyped_storage(), norm.weight.detach().clone()
    version = norm.weight._version
    storage.resize_(0)
    hidden_step(other)
    is_exact(other)
    full[5] = 0
    storage.resize_(full.nbytes)
    with torch.autograd._unsafe_preserve_version_counter(norm.weight):
        norm.weight.data.copy_(full)
    assert norm.weight._version == version
    assert is_exact(norm) == 1
    assert gpu.waits == [1, 1, 1, 1]


def test_parameters_that_may_be_there_or_not_are_counted_by_their_own_forward_alone(gpu):
    """FSDP refills a storage ahead of the forward, while others count: it is not to be read before it is full."""
    norm, other = norm_of(), norm_of()
    is_exact(norm), is_exact(other)
    storage, full = norm.weight.untyped_storage(), norm.weight.detach().clone()
    storage.resize_(0)
    hidden_step(other)
    is_exact(other)
    storage.resize_(full.nbytes)
    norm.weight.data.zero_()  # not yet full
    hidden_step(other)
    is_exact(other)
    norm.weight.data.copy_(full)
    assert is_exact(norm) == 0


def test_norms_of_another_stream_are_counted_by_their_own_forward(gpu):
    """Their optimizer's kernels may still be queued there."""
    norm, other = norm_of(), norm_of()
    for one, stream in ((norm, 1), (other, 2)):
        gpu.torch["stream"] = stream
        is_exact(one)
    hidden_step(norm, other)
    is_exact(other)
    norm.weight.data[:3] = 0  # by a kernel that was queued before the hook
    gpu.torch["stream"] = 1
    assert is_exact(norm) == 3
    gpu.torch["stream"] = 2
    waits = len(gpu.waits)
    assert is_exact(norm) == 3
    assert len(gpu.waits) == waits + 1, "a list belongs to the stream that it was made on"


def test_parameters_of_one_memory_have_versions_of_their_own(gpu):
    one, other = norm_of(nn.FusedRMSNorm), norm_of(nn.FusedRMSNorm)
    is_exact(one)
    with torch.no_grad():
        one.weight.mul_(1.0)
    is_exact(one)
    other.weight = torch.nn.Parameter(one.weight.data)
    with torch.no_grad():
        while other.weight._version < one.weight._version:
            other.weight[:4] = 0
    assert is_exact(other) == 4
    with torch.no_grad():
        other.weight[:6] = 0
    assert is_exact(other) == 6


def test_a_weight_shared_by_norms_of_several_biases_waits_once_after_each_step(gpu):
    norms = [norm_of() for _ in range(3)]
    for norm in norms[1:]:
        norm.weight = norms[0].weight
    for _ in range(2):
        hidden_step(norms[0])
        gpu.waits.clear()
        for norm in norms * 2:
            is_exact(norm)
    assert gpu.waits == [3]


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_s_second_forward_saves_what_its_first_has_saved(gpu, reentrant):
    norm, x = norm_of(at_risk=[1]), torch.randn(2, COLUMNS, requires_grad=True)
    is_exact(norm)
    for step in (False, True):
        output = checkpoint(norm, x, use_reentrant=reentrant)
        if step:
            hidden_step(norm)
        waits = len(gpu.waits)
        output.sum().backward()
        assert len(gpu.waits) == waits + (reentrant and step)
    hidden_step(norm, change=to_risk(4, 5))
    assert is_exact(norm) == 3


def test_a_reentrant_checkpoint_counts_after_each_step(gpu):
    """Its first run saves nothing, and its second runs inside the backward."""
    norm, x = norm_of(), torch.randn(2, COLUMNS, requires_grad=True)
    grad = torch.randn(2, COLUMNS)
    for columns in ((), (4, 5)):
        hidden_step(norm, change=to_risk(*columns))
        norm.weight.grad = None
        checkpoint(norm, x, use_reentrant=True).backward(grad)
        saving = copy.deepcopy(norm)
        saving.memory_efficient = False
        want = torch.autograd.grad(saving(x), saving.weight, grad)[0]
        torch.testing.assert_close(norm.weight.grad, want, rtol=1e-4, atol=1e-4)


def test_a_checkpoint_whose_second_run_saves_another_tensor_is_told(gpu):
    norm, x = norm_of(), torch.randn(2, COLUMNS, requires_grad=True)
    is_exact(norm)
    output = checkpoint(norm, x, use_reentrant=False)
    norm.memory_efficient = False  # as where more than half of the columns have come to risk
    with pytest.raises(torch.utils.checkpoint.CheckpointError, match="different metadata"):
        output.sum().backward()


def test_norms_that_share_a_weight_have_columns_of_their_own(gpu):
    one, other = norm_of(), norm_of()
    other.weight = one.weight
    with torch.no_grad():
        other.bias[:3] = 1e3
    assert [is_exact(one), is_exact(other), is_exact(one), is_exact(other)] == [0, 3, 0, 3]
    hidden_step(one, change=to_risk(20))
    assert [is_exact(one), is_exact(other)] == [1, 4]


def test_another_eps_or_dtype_or_bias_asks_another_question(gpu):
    norm = norm_of()
    with torch.no_grad():
        norm.weight[:4] = 1e-4
    assert is_exact(norm) == 4  # beside a bias of about 1
    norm.bias = None
    assert is_exact(norm) == 0
    norm.eps = 1e-3
    assert is_exact(norm) == 4


def test_parameters_in_one_storage_are_told_apart(gpu):
    flat = torch.ones(2 * COLUMNS)
    flat[3] = 0
    norm = norm_of()
    norm.weight, norm.bias = (torch.nn.Parameter(flat[part : part + COLUMNS]) for part in (0, COLUMNS))
    assert is_exact(norm) == 1
    norm.weight, norm.bias = norm.bias, norm.weight
    assert is_exact(norm) == 0


def test_rows_of_a_table_are_told_apart(gpu):
    table = torch.ones(2, COLUMNS)
    table[0, 3:7] = 0
    norms = [norm_of(nn.FusedRMSNorm) for _ in table]
    for norm, row in zip(norms, table, strict=True):
        norm.weight = torch.nn.Parameter(row)
    assert [is_exact(norm) for norm in norms] == [4, 0]


def test_a_weight_that_autocast_rounds_to_float16_has_columns_at_risk_that_it_has_not_in_float32(gpu):
    norm = norm_of(nn.FusedRMSNorm)
    norm.eps = 1e-12
    with torch.no_grad():
        norm.weight[:3] = 1e-5  # subnormal in float16
    x = torch.randn(2, COLUMNS, requires_grad=True)
    for _ in range(2):
        output = norm(x)
        assert output.grad_fn.saved_tensors[4] is None
        with torch.autocast("cpu", torch.float16):
            output = norm(x)
            assert output.grad_fn.saved_tensors[4].tolist() == [0, 1, 2]


def test_parameters_as_autocast_rounds_them_are_counted_once_after_each_step(gpu):
    norm = norm_of()
    for _ in range(2):
        hidden_step(norm)
        gpu.waits.clear()
        for _ in range(3):
            with torch.autocast("cpu", torch.bfloat16):
                norm(torch.randn(2, COLUMNS, requires_grad=True)).sum().backward()
        assert gpu.waits == [1]


def test_what_was_counted_goes_with_the_parameters(gpu):
    norm = norm_of()
    is_exact(norm)
    known, storage = weakref.ref(next(iter(exact._known))), weakref.ref(norm.weight.untyped_storage())
    del norm
    gc.collect()
    assert storage() is None
    is_exact(norm_of())
    gc.collect()
    assert known() is None, "the next count's launch is another one"


def test_copies_and_files_do_not_take_along_what_was_counted(gpu):
    norm = norm_of(at_risk=[1])
    is_exact(norm)
    file = io.BytesIO()
    torch.save(norm.state_dict(), file)
    file.seek(0)
    again = copy.deepcopy(norm)
    again.load_state_dict(torch.load(file, weights_only=True))
    assert again.weight.untyped_storage() is not norm.weight.untyped_storage()
    assert not hasattr(again.weight.untyped_storage(), "normlab_exact")
    assert is_exact(again) == 1


def test_threads_share_a_norm_and_a_gpu(gpu):
    norms, failed = [norm_of(at_risk=[1]), norm_of()], []

    def train():
        try:
            with using("simulator"), nn.engine("simulator"):
                for _ in range(4):
                    assert is_exact(norms[0]) == 1
                    assert is_exact(norms[1]) == 0
                    hidden_step(*norms, change=lambda weight: None)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=train) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed


# ---- CUDA graphs -----------------------------------------------------------------------------------------------------


def captured(gpu, norm):
    """What a graph of the forward saves: the list of columns, which `gpu.capture.replay()` writes; and the output."""
    with gpu.capture:
        output = norm(torch.randn(2, COLUMNS, requires_grad=True))
    return output.grad_fn.saved_tensors[4], output


def test_a_graph_lists_its_columns_in_each_replay(gpu):
    norm = norm_of(at_risk=[1, 2, 3, 4, 5])
    is_exact(norm)
    columns, _ = captured(gpu, norm)
    for more in (8, 16):
        norm.weight.data[[more, more + 1]] = 0  # up to 16 slots are there: twice 5, in eights
        gpu.capture.replay()
        assert columns[columns >= 0].tolist() == norm.weight.eq(0).nonzero().flatten().tolist()
    assert len(columns) == 16


@pytest.mark.parametrize("told", ["forward", "recount"])
def test_what_a_graph_had_no_slot_for_is_told_once_with_the_norm_s_name(gpu, told):
    model = torch.nn.Sequential(torch.nn.Identity(), norm_of())
    is_exact(model[1])
    graph = captured(gpu, model[1])
    model[1].weight.data[:20] = 0
    gpu.capture.replay()
    with pytest.warns(RuntimeWarning, match=r"1\.weight: in replays of a CUDA graph 12 columns at risk found no slot"):
        is_exact(model[1]) if told == "forward" else nn.recount(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert is_exact(model[1]) == 20, "the eager forward after a replay counts again"
    del graph  # whose memory a replay writes to


def test_a_replay_measures_the_spread_of_its_own_rows(gpu):
    norm = norm_of()
    with torch.no_grad():
        norm.bias.fill_(4)
    is_exact(norm)
    x = torch.randn(2, COLUMNS)
    with gpu.capture:
        output = norm(x.requires_grad_())
    columns = output.grad_fn.saved_tensors[4]
    gpu.capture.replay()
    assert columns.tolist() == [-1] * 8
    (norm_state,) = exact._known
    norm_state.spread.fill_(2.0**-9)  # what rows of a small spread leave there
    assert [kernel.py_func.__name__ for kernel, *_ in gpu.capture.launched].count("measure_spread") == 1


def test_a_graph_of_a_norm_with_many_columns_at_risk_saves_the_input_and_loses_nothing(gpu):
    norm = norm_of(at_risk=range(20))
    is_exact(norm)
    columns, output = captured(gpu, norm)
    assert columns is None
    assert "choose_columns" not in [kernel.py_func.__name__ for kernel, *_ in gpu.capture.launched]
    norm.weight.data.zero_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert is_exact(norm) is None
    del output


def test_what_a_graph_writes_to_lives_as_long_as_the_process(gpu):
    norm = norm_of()
    is_exact(norm)
    captured(gpu, norm)
    gc.collect()
    (known,) = exact._known
    tally = weakref.ref(known.tally)
    norm.bias = torch.nn.Parameter(norm.bias.detach().clone())
    for _ in range(2):
        hidden_step(norm)
        is_exact(norm)
    del known
    gc.collect()
    assert tally() is not None


def test_a_norm_that_was_captured_counts_in_each_eager_forward(gpu):
    """A replay may step its optimizer, of which the host learns nothing before the GPU is there."""
    norm = norm_of()
    is_exact(norm)
    graph = captured(gpu, norm)
    for columns in (1, 2):
        norm.weight.data[:columns] = 0  # by a replay
        assert is_exact(norm) == columns
    del graph


def test_a_warning_finds_its_name_among_models_without_parameters_yet(gpu):
    lazy = torch.nn.LazyLinear(3), torch.nn.Module.__new__(torch.nn.Linear)
    model = torch.nn.Sequential(torch.nn.LazyLinear(3), norm_of())
    is_exact(model[1])
    graph = captured(gpu, model[1])
    model[1].weight.data[:20] = 0
    gpu.capture.replay()
    with pytest.warns(RuntimeWarning, match=r"1\.weight: in replays"):
        is_exact(model[1])
    nn.recount(model)
    del graph, lazy


def test_a_capture_of_new_parameters_says_what_to_do(gpu):
    with gpu.capture, pytest.raises(RuntimeError, match="run the norm once before the capture"):
        norm_of()(torch.randn(2, COLUMNS, requires_grad=True))


# ---- rows whose spread eps hides -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_that_vary_by_far_less_than_sqrt_eps_lose_nothing_beside_a_large_bias(gpu, dtype):
    norm = norm_of(dtype=dtype)
    with torch.no_grad():
        norm.bias.fill_(4)
    assert is_exact(norm, scale=1e-5) is None, "x̂ is about 3e-3, and all columns are at risk: the input is saved"
    assert is_exact(norm_of(dtype=dtype)) == 0


def test_the_spread_of_a_step_s_first_forward_is_that_of_the_next_count(gpu):
    norm = norm_of()
    assert is_exact(norm) == 0
    hidden_step(norm)
    x = 1e-5 * torch.randn(2, COLUMNS, requires_grad=True)
    norm(x)
    hidden_step(norm)
    assert is_exact(norm, scale=1e-5) is None


@pytest.mark.parametrize("engine", ["auto", "simulator"])
def test_without_a_gpu_the_spread_is_that_of_the_forward_itself(engine):
    with nn.engine(engine):
        norm = norm_of(dtype=torch.bfloat16)
        assert is_exact(norm, scale=1e-5, rows=8) is None
        assert is_exact(norm, rows=8) == 0
