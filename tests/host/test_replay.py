"""Calls that repeat, on a fake driver that simulates: a replay gives what the call in full gives, bit for bit."""

import dataclasses
import threading
import time

import devices
import numpy as np
import pytest
import torch
from engine.fake_driver import fake_driver
from engine.fake_torch import fake_backend

from normlab import layer_norm_backward, layer_norm_forward, rms_norm_backward, rms_norm_forward
from normlab.engine import cuda, using
from normlab.host import norms, replay
from normlab.kernels import LADDERS

ROWS, COLUMNS = 3, 36


@pytest.fixture
def gpu(monkeypatch):
    """A fake GPU 0, where CPU tensors lie. Memory that nothing has written is NaN."""
    library = fake_driver(monkeypatch)
    library.torch = fake_backend(monkeypatch)
    torch.use_deterministic_algorithms(True)
    with using("simulator"):  # what is on the host is computed there, where there is a real GPU, too
        yield library
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def idle(gpu):
    """The same where kernels do nothing, for tests that look at no numbers."""
    gpu.run = lambda *args: None
    return gpu


def launches(library):
    return [call for call in library.calls if call[0] == "launch"]


def draw(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype)


def assert_same(got, tensors, function, *args, **options):
    """Results on the fake GPU are those of the simulator on NumPy arrays, where nothing is recorded."""
    want = function(*[None if t is None else t.detach().numpy() for t in tensors], *args, **options)
    for one, other in zip(got, want, strict=True):
        if other is None:
            assert one is None
        else:
            assert one.shape == other.shape
            np.testing.assert_array_equal(one.numpy(), other)


def steps(ladder):
    """Every step with all parameters, and one with each other choice of them."""
    names = [step.name for step in LADDERS[ladder]]
    return [(name, "weight and bias") for name in names] + [(names[0], one) for one in ("weight", "bias", "nothing")]


@pytest.mark.parametrize(("step", "affine"), steps("forward"))
def test_forward_replays_on_other_tensors(gpu, step, affine):
    for _ in range(2):
        x = draw(ROWS, COLUMNS)
        weight = draw(COLUMNS) if "weight" in affine else None
        bias = draw(COLUMNS) if "bias" in affine else None
        output = layer_norm_forward(x, COLUMNS, weight, bias, step=step)
        host = lambda x, weight, bias: layer_norm_forward(x, COLUMNS, weight, bias, step=step)  # noqa: E731
        assert_same(output, (x, weight, bias), host)
        output = rms_norm_forward(x, COLUMNS, weight, step=step)
        assert_same(output, (x, weight), lambda x, weight: rms_norm_forward(x, COLUMNS, weight, step=step))
    assert len(replay._cached) == 2


@pytest.mark.parametrize("memory_efficient", [False, True])
@pytest.mark.parametrize(("step", "affine"), steps("backward"))
def test_backward_replays_on_other_tensors(gpu, step, affine, memory_efficient):
    options = {"memory_efficient": memory_efficient, "step": step}
    for _ in range(2):
        grad, saved, mean = draw(ROWS, COLUMNS), draw(ROWS, COLUMNS), draw(ROWS)
        invvar = draw(ROWS).abs()
        weight = draw(COLUMNS) if "weight" in affine else None
        bias = draw(COLUMNS) if "bias" in affine else None

        def layer(grad, saved, mean, invvar, weight, bias):
            return layer_norm_backward(grad, saved, mean, invvar, COLUMNS, weight, bias, **options)

        def rms(grad, saved, invvar, weight):
            return rms_norm_backward(grad, saved, invvar, COLUMNS, weight, **options)

        tensors = grad, saved, mean, invvar, weight, bias
        assert_same(layer(*tensors), tensors, layer)
        tensors = grad, saved, invvar, weight
        assert_same(rms(*tensors), tensors, rms)
    assert len(replay._cached) == 2


def recomputed(grad, saved, invvar, weight, **how):
    return rms_norm_backward(grad, saved, invvar, COLUMNS, weight, **how)


def test_a_gradient_of_another_dtype_than_what_was_saved_is_a_recording_of_its_own(gpu):
    grad, saved, invvar, weight = draw(ROWS, COLUMNS), draw(ROWS, COLUMNS), draw(ROWS).abs(), draw(COLUMNS)
    for _ in range(2):
        for dtype in (torch.float16, torch.float32):
            how = {"memory_efficient": True, "input_dtype": dtype}
            got = recomputed(grad, saved, invvar, weight, **how)
            assert got[0].dtype == dtype
            assert_same(got, (grad, saved, invvar, weight), recomputed, **how)
    assert len(replay._cached) == 2


def test_tensors_that_were_one_at_first_may_be_two_later(gpu):
    for same in (True, False):
        grad, weight, bias = draw(ROWS, COLUMNS), draw(COLUMNS), draw(COLUMNS)
        saved, bias = (grad, weight) if same else (draw(ROWS, COLUMNS), bias)
        statistics = draw(ROWS).abs()
        tensors = grad, saved, statistics, statistics if same else draw(ROWS).abs(), weight, bias
        call = lambda g, s, m, v, w, b: layer_norm_backward(g, s, m, v, COLUMNS, w, b)  # noqa: E731
        assert_same(call(*tensors), tensors, call)
        forward = lambda x, w, b: layer_norm_forward(x, COLUMNS, w, b)  # noqa: E731
        assert_same(forward(saved, weight, bias), (saved, weight, bias), forward)
    assert len(replay._cached) == 2


def test_leading_dimensions_come_back_and_no_rows_are_no_launch(gpu):
    for shape in [(2, 3, 4, 5), (0, 4, 5), (0, 4, 5), (2, 3, 4, 5)]:
        x, weight, bias = draw(*shape), draw(4, 5), draw(4, 5)
        forward = lambda x, w, b: layer_norm_forward(x, (4, 5), w, b)  # noqa: E731
        output, mean, invvar = forward(x, weight, bias)
        assert_same((output, mean, invvar), (x, weight, bias), forward)
        backward = lambda g, s, m, v, w, b: layer_norm_backward(g, s, m, v, [4, 5], w, b)  # noqa: E731
        tensors = output, x, mean, invvar, weight, bias
        assert_same(backward(*tensors), tensors, backward)
    assert len(replay._cached) == 4


def test_a_replay_compiles_checks_and_plans_nothing(idle, monkeypatch):
    x, weight = draw(ROWS, COLUMNS), torch.nn.Parameter(draw(COLUMNS))
    for _ in range(2):
        statistics = layer_norm_forward(x, COLUMNS, weight)[1:]
        layer_norm_backward(x, x, *statistics, COLUMNS, weight)
    monkeypatch.setattr(norms, "checks", None)
    monkeypatch.setattr(norms, "backend_of", None)
    before = len(launches(idle))
    assert not layer_norm_forward(x, COLUMNS, weight)[0].requires_grad
    layer_norm_backward(x, x, *statistics, COLUMNS, weight)
    assert len(launches(idle)) == before + 2  # a forward, and a backward of too few rows for final sums
    assert len(idle.compiled) == 2


def test_replays_go_to_the_current_stream(idle):
    x = draw(ROWS, COLUMNS)
    for stream in (7, 8, 9):
        idle.torch["stream"] = stream
        layer_norm_forward(x, COLUMNS)
    assert [call[4] for call in launches(idle)] == [7, 8, 9]


def test_other_signatures_are_other_recordings(idle):
    base = draw(4 * ROWS * COLUMNS)
    row = draw(3 * COLUMNS)
    x, weight = base[: ROWS * COLUMNS].view(ROWS, COLUMNS), row[:COLUMNS]
    calls = [
        lambda: layer_norm_forward(x, COLUMNS),
        lambda: layer_norm_forward(x, (ROWS, COLUMNS)),
        lambda: layer_norm_forward(x, COLUMNS, eps=1e-6),
        lambda: layer_norm_forward(x, COLUMNS, weight),
        lambda: layer_norm_forward(x, COLUMNS, None, weight),
        lambda: layer_norm_forward(x, COLUMNS, row[1 : COLUMNS + 1]),  # an address that is no multiple of 16 bytes
        lambda: layer_norm_forward(base[1 : ROWS * COLUMNS + 1].view(ROWS, COLUMNS), COLUMNS),
        lambda: layer_norm_forward(x[1:], COLUMNS),
        lambda: layer_norm_forward(x, COLUMNS, step="apex"),
        lambda: layer_norm_forward(x.double(), COLUMNS),
        lambda: layer_norm_forward(x, COLUMNS, weight.half()),
        lambda: rms_norm_forward(x, COLUMNS),
    ]
    for _ in range(2):
        for number, call in enumerate(calls, start=1):
            call()
            assert len(replay._cached) >= number
    assert len(replay._cached) == len(calls)


def test_what_is_not_recorded_goes_the_normal_way(gpu):
    layer_norm_forward(draw(ROWS, COLUMNS), COLUMNS)
    x = draw(ROWS, 2 * COLUMNS)[:, ::2]
    for _ in range(2):
        forward = lambda x: layer_norm_forward(x, COLUMNS)  # noqa: E731
        assert_same(forward(x), (x,), forward)
        layer_norm_forward(x.numpy(), COLUMNS)
        layer_norm_forward(x.contiguous(), np.int64(COLUMNS))
        layer_norm_forward(x.contiguous(), COLUMNS, eps=0)
    assert len(replay._cached) == 1  # of the first call


@cuda.jit
def add_row(x, row, target):
    """target = x + row; then row gets 1 added, which nobody who expects zeros must find."""
    for j in range(cuda.threadIdx.x, row.shape[0], 32):
        for i in range(x.shape[0]):
            target[i, j] = x[i, j] + row[j]
        row[j] += 1


TABLE = draw(COLUMNS)


def with_an_array_of_its_own(launch, memory, problem):
    table = problem.x._replace(pointer=TABLE.data_ptr(), shape=(COLUMNS,), owner=TABLE)
    launch(add_row, 1, 32, problem.x, table, problem.output)


def on_halves(launch, memory, problem):
    """The lower half of grad_input is that of saved, the upper half is greater by 1."""
    rows = problem.saved.shape[0] // 2
    table = memory.zeros((2 * COLUMNS,), np.dtype(np.float32))
    second = table._replace(pointer=table.pointer + 4 * COLUMNS, shape=(COLUMNS,))
    for offset in (0, 4 * COLUMNS * rows):
        saved, target = (
            array._replace(pointer=array.pointer + offset, shape=(rows, COLUMNS))
            for array in (problem.saved, problem.grad_input)
        )
        launch(add_row, 1, 32, saved, second, target)


def add_step(monkeypatch, ladder, run):
    first = LADDERS[ladder][0]
    own = type("Added", (type(first),), {"run": lambda step, *args, **how: run(*args, **how)})
    fields = {field.name: getattr(first, field.name) for field in dataclasses.fields(first)}
    monkeypatch.setitem(LADDERS, ladder, (*LADDERS[ladder], own(**{**fields, "name": "added"})))


def test_a_step_with_an_array_of_its_own_is_not_recorded(gpu, monkeypatch):
    add_step(monkeypatch, "forward", with_an_array_of_its_own)
    for _ in range(2):
        x, table = draw(ROWS, COLUMNS), TABLE.clone()
        output = layer_norm_forward(x, COLUMNS, step="added")[0]
        np.testing.assert_array_equal(output, x + table)
    assert not replay._cached


def test_parts_of_operands_move_with_them_and_zeros_are_zeros_each_time(gpu, monkeypatch):
    add_step(monkeypatch, "backward", on_halves)
    statistics = torch.ones(6)
    for _ in range(4):
        x = draw(6, COLUMNS)
        grad_input = layer_norm_backward(x, x, statistics, statistics, COLUMNS, step="added")[0]
        np.testing.assert_array_equal(grad_input[:3], x[:3])
        np.testing.assert_array_equal(grad_input[3:], x[3:] + 1)
    assert len(replay._cached) == 1


def backward_recording():
    """That of the only backward so far, of LayerNorm with both parameters, and what it was called with."""
    tensors = [draw(ROWS, COLUMNS), draw(ROWS, COLUMNS), draw(ROWS), draw(ROWS).abs(), draw(COLUMNS), draw(COLUMNS)]
    layer_norm_backward(*tensors[:4], COLUMNS, *tensors[4:])
    (recording,) = replay._cached.values()
    return recording, tensors


def test_memory_that_is_not_given_back_is_one_piece_whose_parts_are_aligned(idle, monkeypatch):
    devices.many_rows(monkeypatch)
    recording, _ = backward_recording()
    scratch = 6 + 3  # behind the tensors that are given, and the three gradients
    assert len(recording._anywhere) == 3 + 1
    offsets = {offset for launch in recording._launches for _, source, offset in launch.patches if source == scratch}
    assert len(offsets) == 2  # the partial sums of weight and of bias
    assert all(offset % 256 == 0 for offset in offsets)


@pytest.mark.parametrize("current", [0, 1])
def test_quick_memory_is_for_the_current_gpu_only(gpu, monkeypatch, current):
    made = []
    empty = torch._C._dynamo.guards._empty_strided_cpu
    monkeypatch.setattr(replay, "quick_memory", lambda: (lambda: current, lambda *how: made.append(how) or empty(*how)))
    recording, tensors = backward_recording()
    assert not made
    call = lambda g, s, m, v, w, b: layer_norm_backward(g, s, m, v, COLUMNS, w, b)  # noqa: E731
    for _ in range(2):
        assert_same(call(*tensors), tensors, call)
    assert len(made) == (2 * len(recording._here) if current == 0 else 0)


# ---- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        ({"normalized_shape": 4.0}, TypeError, "normalized_shape must be an int or a tuple of ints, got 4.0"),
        ({"normalized_shape": (4.0,)}, TypeError, r"normalized_shape must be an int or a tuple of ints, got \(4.0,\)"),
        ({"normalized_shape": "4"}, TypeError, "normalized_shape must be an int or a tuple of ints, got '4'"),
        ({"normalized_shape": None}, TypeError, "normalized_shape must be an int or a tuple of ints, got None"),
        ({"eps": "small"}, TypeError, "eps must be a real number, got 'small'"),
        ({"eps": [1e-5]}, TypeError, "eps must be a real number, got"),
        ({"step": ["apex"]}, ValueError, "unknown step"),
        ({"step": "fast"}, ValueError, "unknown step 'fast'"),
        ({"weight": torch.ones(3)}, ValueError, "Expected weight to be of shape"),
        ({"weight": torch.ones(4).double()}, TypeError, "x is float32 and weight is float64"),
        ({"x": torch.ones(2, 4, device="meta")}, ValueError, "x is on meta"),
        ({"weight": torch.ones(4, device="meta")}, ValueError, "x is on cpu and weight is on meta"),
        ({"x": [[1.0] * 4]}, TypeError, "x must be a NumPy array, a torch tensor or an array"),
    ],
)
def test_errors_are_the_same_after_a_right_call(idle, change, kind, text):
    right = {"x": draw(2, 4), "normalized_shape": 4, "weight": draw(4), "eps": 1e-5}
    for _ in range(2):
        layer_norm_forward(**right)
        layer_norm_forward(**right | {"normalized_shape": (4,)})
    with pytest.raises(kind, match=text):
        layer_norm_forward(**right | change)


def test_statistics_are_checked_after_a_right_call_even_where_they_are_not_read(idle):
    x, statistics = draw(2, 3, 4), torch.ones(2, 3)
    for _ in range(2):
        layer_norm_backward(x, x, statistics, statistics, 4, memory_efficient=True)
    with pytest.raises(ValueError, match="Expected mean to be of shape"):
        layer_norm_backward(x, x, torch.ones(3, 2), statistics, 4, memory_efficient=True)
    with pytest.raises(ValueError, match="mean is needed when saved is the input"):
        layer_norm_backward(x, x, None, statistics, 4)


# ---- bounds and threads ---------------------------------------------------------------------------------------------


def test_the_oldest_recordings_make_room(gpu, monkeypatch):
    monkeypatch.setattr(replay, "LIMIT", 3)
    for rows in (1, 2, 3, 4, 5, 1, 2):
        x = draw(rows, COLUMNS)
        forward = lambda x: layer_norm_forward(x, COLUMNS)  # noqa: E731
        assert_same(forward(x), (x,), forward)
        assert len(replay._cached) <= 3


def test_threads_replay_side_by_side(gpu):
    warm = draw(ROWS, COLUMNS)
    layer_norm_forward(warm, COLUMNS)
    tensors = [draw(ROWS, COLUMNS) for _ in range(4)]
    results = [None] * 4
    inside = threading.Barrier(4, timeout=20)
    gpu.before_reading = inside.wait
    torch_results = lambda k: results.__setitem__(k, layer_norm_forward(tensors[k], COLUMNS))  # noqa: E731
    threads = [threading.Thread(target=torch_results, args=[k]) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for tensor, result in zip(tensors, results, strict=True):
        assert_same(result, (tensor,), lambda x: layer_norm_forward(x, COLUMNS))


def test_python_s_part_of_a_replay_is_short(idle):
    """About 7 µs on an idle core at 2.5 GHz; the bound leaves room for busy ones."""
    x, weight, bias = draw(8, 4096), draw(4096), draw(4096)
    layer_norm_forward(x, 4096, weight, bias)
    (recording,) = replay._cached.values()
    for launch in recording._launches:
        launch._launch = lambda *args: 0
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(100):
            layer_norm_forward(x, 4096, weight, bias)
        best = min(best, (time.perf_counter() - start) / 100)
    assert best < 40e-6
