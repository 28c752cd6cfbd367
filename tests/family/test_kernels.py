"""The family's kernels under watch, and on a fake GPU where calls repeat; and the same checks on code with mistakes."""

import re

import numpy as np
import pytest
import torch
from draws import DTYPES
from engine.fake_driver import fake_driver
from engine.fake_interface import Interface, fake_memory
from engine.fake_torch import fake_backend
from engine.late import Late
from family.examples import example, few_blocks
from watching import Memory, launcher

from normlab.engine import launch, using
from normlab.host import family, norms, replay
from normlab.kernels import family as kernels
from normlab.kernels.family import merge
from normlab.kernels.family.sets import Pieces

CASES = [
    ("batch", (3, 4, 37), 4, "float32", False, True, "reverse"),
    ("instance", (2, 3, 2, 4), 3, "bfloat16", False, False, 5),
    ("group", (2, 6, 5), 2, "float16", True, True, "forward"),
    ("batch", (80, 40), 40, "float32", True, True, "reverse"),  # two stacks of channels, two parts
    ("batch", (1, 2, 1300), 2, "float64", False, True, 6),
    ("instance", (3, 2, 37), 2, "float32", False, True, "forward"),  # four sets a block
    ("group", (2, 6, 210), 2, "bfloat16", False, True, "forward"),  # several warps a set
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_nothing_is_found_in_any_kernel(case):
    norm, shape, groups, dtype, last, affine, schedule = case
    one = example(norm, shape, dtype, last=last)
    view = family.view_of(one.x)
    sets = view.sets(norm, groups)
    x, dy = (np.ascontiguousarray(view.as_stored(array)).reshape(sets.shape) for array in (one.x, one.grad_output))
    weight, bias = (one.weight, one.bias) if affine else (None, None)
    statistics = np.float64 if dtype == "float64" else np.float32
    memory = Memory()
    watched = launcher(memory, schedule)

    def launch(kernel, grid, block, *operands):
        """An operand may be an array in another shape: then that one is what has no contents yet."""
        views = {id(one.base): one for one in operands if isinstance(one, np.ndarray)}
        memory.empties = [views.get(id(one), one) for one in memory.empties]
        watched(kernel, grid, block, *operands)

    mean, variance, invvar = (memory.empty((sets.total,), statistics) for _ in range(3))
    output, grad_input = memory.empty(x.shape, x.dtype), memory.empty(x.shape, x.dtype)
    grads = [memory.empty((shape[1],), DTYPES[dtype]) for _ in range(2)] if affine else [None, None]
    running = np.zeros(shape[1], statistics), np.ones(shape[1], statistics)
    walked = kernels.walk(sets, x, output)
    if schedule == "forward":  # no variance is wanted, and a set that a block can hold is one kernel's
        variance = np.zeros_like(memory.empties.pop(1))
    wanted = None if schedule == "forward" else variance
    kernels.forward(
        launch,
        memory,
        walked,
        kernels.Outputs(walked.sets, x, weight, bias, statistics(1e-5), mean, wanted, invvar, output),
    )
    kernels.gradients(
        launch, memory, walked, kernels.Gradients(walked.sets, dy, x, mean, invvar, weight, True, grad_input, *grads)
    )
    if sets.sets == shape[1]:
        kernels.launch_update(launch, mean, variance, sets.batches, statistics(0.1), *running)
        kernels.launch_use(launch, *running, statistics(1e-5), mean, invvar)
    assert not memory.empties
    assert all(np.isfinite(array.astype(np.float64)).all() for array in (output, grad_input))


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize(("norm", "groups"), [("batch", 4), ("group", 2)])
@pytest.mark.parametrize("last", [True, False])
def test_what_kernels_before_have_made_is_touched_behind_the_wait_alone(monkeypatch, norm, groups, last, own):
    one = example(norm, (3, 4, 6, 2), last=last)
    view = family.view_of(one.x)
    sets = view.sets(norm, groups)
    x, dy = (np.ascontiguousarray(view.as_stored(array)).reshape(sets.shape) for array in (one.x, one.grad_output))
    walked = kernels.walk(sets, x, x)

    def results(launch, memory, inputs):
        mean, variance, invvar = (memory.empty((sets.total,), np.float32) for _ in range(3))
        output, grad_input = (memory.empty(x.shape, x.dtype) for _ in range(2))
        eps = np.float32(1e-5)
        kernels.forward(
            launch,
            memory,
            walked,
            kernels.Outputs(walked.sets, x, one.weight, one.bias, eps, mean, variance, invvar, output),
        )
        grads = [memory.empty((4,), np.float32) if own else None for _ in range(2)]
        if not own:  # the gradients' first kernel is the only one, and has to wait for its inputs, too
            inputs += [x, dy]
        kernels.gradients(
            launch,
            memory,
            walked,
            kernels.Gradients(walked.sets, dy, x, mean, invvar, one.weight, own, grad_input, *grads),
        )
        return [mean, variance, invvar, output, grad_input, *filter(lambda grad: grad is not None, grads)]

    with using("simulator"):
        want = results(launch, Memory(), [])
        late = Late(monkeypatch)
        for got, right in zip(results(late.launch, late, late.late), want, strict=True):
            np.testing.assert_array_equal(got, right)


@pytest.mark.parametrize("outer", [1, 3, 40, 150, 520])
def test_pieces_are_merged_by_few_lanes_a_warp_or_a_block(outer):
    """Two batches, two sets of two channels, each channel in one slice."""
    shape = Pieces(batches=2, outer=outer, sets=2, inner=2, slices=1, terms=1, levels=0)
    rng = np.random.default_rng(outer)
    values = rng.normal(size=(2, outer, 2, 2, 4)) + 3  # four values a piece
    means, m2s = values.mean(-1), 4 * values.var(-1)
    pieces = np.stack([array.reshape(-1) for array in (means, m2s, np.full(means.shape, 4))])
    memory = Memory()
    launch = launcher(memory, "reverse")
    mean, variance, invvar = (memory.empty((4,), np.float64) for _ in range(3))
    merge.launch_moments(launch, pieces, shape, np.float64(0.5), mean, variance, invvar)
    sets = values.transpose(0, 2, 1, 3, 4).reshape(4, -1)
    np.testing.assert_allclose(mean, sets.mean(1), rtol=1e-13)
    np.testing.assert_allclose(variance, sets.var(1, ddof=1), rtol=1e-12)
    np.testing.assert_allclose(invvar, 1 / np.sqrt(sets.var(1) + 0.5), rtol=1e-12)
    weight = np.array([1.0, -2, 3, 0.5])
    first, second = (memory.empty((4,), np.float64) for _ in range(2))
    merge.launch_sums(launch, pieces[:2], shape, weight, 7, first, second)
    weighted = (values.sum(-1) / 4 * weight.reshape(2, 2)).sum(axis=(1, 3)).reshape(-1) / 7
    np.testing.assert_allclose(first, weighted, rtol=1e-12)
    totals = memory.empty((4,), np.float64)
    merge.launch_sums(launch, pieces[:2], shape.by_channel(), None, 1, None, totals)
    np.testing.assert_allclose(totals, m2s.sum(axis=(0, 1)).reshape(-1), rtol=1e-12)
    assert not memory.empties


@pytest.fixture
def gpu(monkeypatch):
    """A fake GPU 0, where CPU tensors lie. Memory that nothing has written is NaN."""
    library = fake_driver(monkeypatch)
    library.torch = fake_backend(monkeypatch)
    monkeypatch.setattr(family, "backend_of", norms.backend_of)
    with using("simulator"):
        yield library


@pytest.mark.parametrize(("norm", "last"), [("batch", True), ("instance", False), ("group", True), ("group", False)])
def test_calls_on_a_gpu_are_recorded_and_replayed_on_other_tensors(gpu, norm, last):
    before = len(replay._cached)
    for seed in range(2):
        one = example(norm, (2, 4, 3, 2), groups=2, last=last, seed=seed)
        x, dy, weight, bias = map(torch.from_numpy, (one.x, one.grad_output, one.weight, one.bias))
        running = torch.zeros(4), torch.ones(4)
        kept = np.zeros(4, np.float32), np.ones(4, np.float32)
        if norm == "group":
            results = family.group_norm(x, 2, weight, bias)
            gradients = family.group_norm_backward(dy, x, *results[1:], 2, weight, bias)
            wanted = one.forward()
        else:
            results = getattr(family, f"{norm}_norm")(x, *running, weight, bias)
            gradients = getattr(family, f"{norm}_norm_backward")(dy, x, *results[1:], weight, bias)
            wanted = getattr(family, f"{norm}_norm")(one.x, *kept, one.weight, one.bias)
        for got, want in zip((*results, *gradients), (*wanted, *one.backward(*wanted[1:])), strict=True):
            np.testing.assert_array_equal(got.numpy(), want)
        for got, want in zip(running, kept, strict=True):
            np.testing.assert_array_equal(got.numpy(), want)
    assert len(replay._cached) == before + 2


def test_each_replay_of_blocks_that_meet_has_a_new_counter(monkeypatch, gpu):
    few_blocks(monkeypatch)
    before = len(replay._cached)
    for seed in range(3):
        one = example("batch", (2, 40, 5, 5), last=True, seed=seed)
        x, dy, weight, bias = map(torch.from_numpy, (one.x, one.grad_output, one.weight, one.bias))
        results = family.batch_norm(x, None, None, weight, bias)
        results += family.batch_norm_backward(dy, x, *results[1:], weight, bias)
        wanted = one.forward()
        for got, want in zip(results, (*wanted, *one.backward(*wanted[1:])), strict=True):
            np.testing.assert_array_equal(got.numpy(), want)
    assert [name for name, _ in gpu.compiled] == ["family_column_forward", "family_column_backward"]
    assert len(replay._cached) == before + 2


@pytest.mark.parametrize("stream", [None, 99])
def test_a_counter_of_blocks_that_meet_is_cleared_on_the_stream_of_their_kernel(monkeypatch, stream):
    few_blocks(monkeypatch)
    library = fake_driver(monkeypatch)
    fake_memory(monkeypatch)
    one = example("batch", (301, 16))
    x, dy, weight, bias = (Interface(array, stream) for array in (one.x, one.grad_output, one.weight, one.bias))
    with using("simulator"):
        results = family.batch_norm(x, None, None, weight, bias)
        moments = [Interface(array, stream) for array in results[1:]]
        results += family.batch_norm_backward(dy, x, *moments, weight, bias)
        wanted = one.forward()
        for got, want in zip(results, (*wanted, *one.backward(*wanted[1:])), strict=True):
            np.testing.assert_array_equal(got, want)
    queued = [call for call in library.calls if call[0] in ("memset", "launch")]
    assert [call[0] for call in queued] == 2 * ["memset", "launch"]
    assert [(call[2], call[3]) for call in queued[::2]] == 2 * [(4, stream)]
    assert [call[4] for call in queued[1::2]] == 2 * [stream]


@pytest.mark.parametrize("last", [False, True])
def test_what_is_replayed_depends_on_everything_that_a_call_depends_on(gpu, last):
    one = example("batch", (2, 4, 3, 2), last=last)
    x, dy = map(torch.from_numpy, (one.x, one.grad_output))
    calls = 0
    for affine in ("both", "weight", "bias", "none"):
        weight, bias = (torch.ones(4) if affine in ("both", name) else None for name in ("weight", "bias"))
        for _ in range(2):
            results = family.batch_norm(x, None, None, weight, bias)
            gradients = family.batch_norm_backward(dy, x, *results[1:], weight, bias)
            assert [one is None for one in gradients] == [False, weight is None, bias is None]
        calls += 2
        assert len(replay._cached) == calls


def test_a_wrong_kind_of_number_is_an_error_after_a_right_call_too(gpu):
    x = torch.randn(2, 4, 3)
    family.group_norm(x, 2)
    with pytest.raises(TypeError, match=r"num_groups must be an int, got 2\.0"):
        family.group_norm(x, 2.0)
    _, mean, invvar = family.batch_norm(x, None, None, torch.ones(4), torch.ones(4))
    with pytest.raises(TypeError, match=r"momentum must be a real number, got '0\.1'"):
        family.batch_norm(x, momentum="0.1")
    family.batch_norm_backward(x, x, mean, invvar, torch.ones(4), torch.ones(4))
    with pytest.raises(ValueError, match="bias should contain 4 elements not 3"):
        family.batch_norm_backward(x, x, mean, invvar, torch.ones(4), torch.ones(3))
    with pytest.raises(TypeError, match="bias is float64"):
        family.batch_norm_backward(x, x, mean, invvar, torch.ones(4), torch.ones(4).double())


@pytest.mark.parametrize("like", [torch.from_numpy, np.asarray])
def test_what_cannot_be_hashed_is_an_error_of_the_same_text_for_tensors_and_for_numpy_arrays(gpu, like):
    x, statistics = like(np.ones((2, 4, 3), np.float32)), like(np.ones((2, 2), np.float32))
    calls = [
        (lambda: family.group_norm(x, [2]), "num_groups must be an int, got [2]"),
        (lambda: family.group_norm_backward(x, x, statistics, statistics, [2]), "num_groups must be an int, got [2]"),
        (lambda: family.batch_norm(x, momentum=[1]), "momentum must be a real number, got [1]"),
        (lambda: family.instance_norm(x, momentum={}), "momentum must be a real number, got {}"),
    ]
    for call, text in calls:
        with pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
            call()
    rows = like(np.ones(2, np.float32))
    x = like(np.ones((2, 4), np.float32))
    text = "Expected input_dtype to be float32 (as saved, which is the input), but got ['float32']"
    with pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
        norms.layer_norm_backward(x, x, rows, rows, 4, input_dtype=["float32"])


@pytest.mark.parametrize("groups", [torch.tensor(2), np.array(2)])
def test_a_number_of_groups_that_changes_in_place_counts_as_it_is_now(gpu, groups):
    x = torch.randn(2, 4, 3)
    for number in (2, 4, 1):
        groups[...] = number
        output, mean, invvar = family.group_norm(x, groups)
        assert mean.shape == (2, number)
        np.testing.assert_array_equal(output, family.group_norm(x.numpy(), number)[0])
        (grad, *_), (want, *_) = (
            family.group_norm_backward(x, x, mean, invvar, groups),
            family.group_norm_backward(*map(np.asarray, (x, x, mean, invvar)), number),
        )
        np.testing.assert_array_equal(grad, want)
