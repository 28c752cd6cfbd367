"""Batch, instance and group norm on the simulator: within bounds, equal where they must be, and torch's words."""

import numpy as np
import pytest
import torch
from draws import DTYPES
from examine import hold
from family.examples import NORMS, Example, channels_last, example
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from normlab import layer_norm_forward, oracle
from normlab.engine import launch, using
from normlab.host import arrays, family
from normlab.kernels.family import merge, walk
from normlab.oracle import family as truth
from normlab.oracle import family_bounds as bounds

# shape, groups: every dimension that torch has, runs of several pieces, of odd lengths and shorter than a warp
SHAPES = [
    ((5, 6), 2),
    ((3, 4, 37), 2),
    ((2, 6, 5, 8), 3),
    ((2, 4, 2, 3, 4), 4),
    ((1, 2, 1601), 1),  # an odd run: two pieces
    ((2, 2, 52, 52), 2),  # three pieces of 676 vectors
    ((35, 1, 3), 1),  # more pieces a set than lanes
]


@pytest.mark.parametrize(("shape", "groups"), SHAPES, ids=str)
@pytest.mark.parametrize("norm", NORMS)
def test_every_shape_is_within_its_bounds(norm, shape, groups):
    if norm == "instance" and len(shape) == 2:
        pytest.skip("a set of instance norm on a matrix has one value, which torch refuses")
    example(norm, shape, groups=groups).examine()


@pytest.mark.parametrize(
    ("shape", "groups"),
    [((3, 6, 5), 2), ((2, 16, 3, 3), 4), ((2, 33, 9, 8), 11), ((2, 5, 2, 2, 2), 5)],
    ids=str,
)
@pytest.mark.parametrize("norm", NORMS)
def test_channels_last_are_within_bounds_and_stay_last(norm, shape, groups):
    output, *_, grad_input, _, _ = example(norm, shape, groups=groups, last=True).examine()
    assert np.moveaxis(output, 1, -1).flags.c_contiguous
    assert np.moveaxis(grad_input, 1, -1).flags.c_contiguous


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("at", [0, -1])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_value_that_is_not_finite_stays_in_its_set_and_within_the_bounds(norm, at, value):
    one = example(norm, (2, 2, 1601))
    one.x.flat[at] = value
    output, mean, *_ = one.examine()
    assert 0 < np.isnan(output).sum() < output.size
    assert np.isfinite(mean).any()


@settings(max_examples=15)
@given(st.data())
def test_dtypes_parameters_and_layouts_are_within_their_bounds(data):
    dtype = data.draw(st.sampled_from(list(DTYPES)), label="dtype")
    parameters = data.draw(st.sampled_from([dtype, *(["float32"] if "16" in dtype else [])]), label="parameters")
    norm = data.draw(st.sampled_from(NORMS), label="norm")
    shape = data.draw(st.sampled_from([(2, 4, 6), (3, 8, 2, 2), (2, 2, 33), (4, 2, 3, 1, 3)]), label="shape")
    one = example(
        norm,
        shape,
        dtype,
        parameters,
        groups=data.draw(st.sampled_from([1, 2]), label="groups"),
        affine=data.draw(st.sampled_from(["both", "weight", "bias", "none"]), label="affine"),
        last=data.draw(st.booleans(), label="channels last"),
        offset=data.draw(st.sampled_from([0.0, 100.0]), label="offset"),
        eps=data.draw(st.sampled_from([1e-12, 1e-5, 0.5]), label="eps"),
        seed=data.draw(st.integers(0, 1000), label="seed"),
    )
    results = one.examine()
    parameter = DTYPES[parameters]
    statistics = np.float64 if dtype == "float64" else np.float32
    dtypes = [one.x.dtype, statistics, statistics, one.x.dtype, parameter, parameter]
    assert all(got is None or got.dtype == want for got, want in zip(results, dtypes, strict=True))
    assert [got is None for got in results[4:]] == [one.weight is None, one.bias is None]


# ---- equivalences ---------------------------------------------------------------------------------------------------


def plain(norm, x, groups=1):
    """A norm without parameters, its own input for a grad_output: all results."""
    one = Example(norm, x, x, None, None, groups=groups)
    return one, one.examine()


def assert_bits(got, want):
    for one, other in zip(got, want, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_array_equal(one.reshape(-1), other.reshape(-1))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("offset", [0.0, 30.0])
def test_group_norm_of_groups_of_one_channel_is_instance_norm(offset, last):
    x = example("group", (2, 3, 4, 5), offset=offset, last=last).x
    assert_bits(plain("group", x, 3)[1], plain("instance", x)[1])


@pytest.mark.parametrize("last", [False, True])
def test_instance_norm_of_one_sample_is_its_batch_norm(last):
    x = example("instance", (1, 3, 4, 5), last=last).x
    assert_bits(plain("instance", x)[1], plain("batch", x)[1])


@pytest.mark.parametrize("last", [False, True])
def test_group_norm_with_one_group_is_layer_norm_over_channels_and_space(last):
    x = example("group", (2, 3, 4, 5), last=last).x
    one, results = plain("group", x)
    laid = np.ascontiguousarray(x)
    bound = bounds.family_norm_bound(x, one.sets, None, None, one.eps, one.arithmetic)
    truths = oracle.layer_norm(laid, x.shape[1:], eps=one.eps)
    for what, got, want, limit in zip(truths._fields, results, truths, bound, strict=False):
        hold(f"group norm as layer norm: {what}", got.reshape(want.shape), want, limit.reshape(want.shape))
    np.testing.assert_array_equal(family.layer_norm(laid, x.shape[1:])[0], layer_norm_forward(laid, x.shape[1:])[0])


def test_batch_norm_of_a_matrix_is_layer_norm_of_its_transpose():
    x = example("batch", (9, 5)).x
    one, results = plain("batch", x)
    bound = bounds.family_norm_bound(x, one.sets, None, None, one.eps, one.arithmetic)
    truths = oracle.layer_norm(x.T, 9, eps=one.eps)
    hold("batch norm as layer norm: output", results[0].T, truths.output, bound.output.T)
    hold("batch norm as layer norm: mean", results[1], truths.mean, bound.mean)


@pytest.mark.parametrize("shape", [(6, 3, 1000), (6, 8)], ids=str)
def test_merged_pieces_of_shards_are_the_statistics_of_the_whole(shape):
    """As machines do it: each has some of the samples, and one of them merges what all have left."""
    x = example("batch", shape).x

    def pieces(part):
        walked = walk(family.view_of(part).sets("batch", shape[1]), part)
        operand = part.reshape(walked.sets.shape)
        left = np.full((3, walked.pieces.size), np.nan, np.float32)
        with using("simulator"):
            walked.launch_moments(launch, operand, left)
        return left, walked.pieces

    def merged(left, shape_of_pieces):
        mean, variance, invvar = (np.full(shape[1], np.nan, np.float32) for _ in range(3))
        with using("simulator"):
            merge.launch_moments(launch, left, shape_of_pieces, np.float32(1e-5), mean, variance, invvar)
        return mean, variance, invvar

    (first, own), (second, _) = pieces(x[:4]), pieces(x[4:])
    together = np.concatenate([first, second], axis=1), own._replace(outer=(first.size + second.size) // 3 // shape[1])
    with using("simulator"):
        whole = family.batch_norm(x)
    mean, variance, invvar = merged(*together)
    if len(shape) > 2:  # a plane as long as that is a piece, whoever has it
        assert_bits((mean, invvar), whole[1:])
    np.testing.assert_allclose(mean, whole[1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(invvar, whole[2], rtol=1e-5)
    others = tuple(axis for axis in range(x.ndim) if axis != 1)
    np.testing.assert_allclose(variance, x.astype(np.float64).var(axis=others, ddof=1), rtol=1e-5)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("norm", NORMS)
def test_results_are_the_same_bits_in_every_schedule(norm, last):
    one = example(norm, (3, 10, 3, 5), groups=2, last=last)
    with using("simulator"):
        forward = one.forward()
        first = *forward, *one.backward(*forward[1:])
    with using("simulator", "reverse"):
        again = one.forward()
        assert_bits((*again, *one.backward(*again[1:])), first)


# ---- running statistics and evaluation ------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["batch", "instance"])
@pytest.mark.parametrize("momentum", [0.1, 1.0, 0.0])
def test_running_statistics_are_torch_s(norm, momentum):
    x = example(norm, (4, 3, 5), offset=2.0).x
    running = [np.float32([1, -2, 0.5]), np.float32([0.5, 2, 1])]
    tensors = [torch.from_numpy(one.copy()) for one in running]
    mine, theirs = (getattr(module, f"{norm}_norm") for module in (family, functional))
    output, *_ = mine(x, *running, None, None, True, momentum)
    want = theirs(torch.from_numpy(x), *tensors, None, None, True, momentum)
    np.testing.assert_allclose(output, want, rtol=1e-4, atol=1e-5)
    for got, tensor in zip(running, tensors, strict=True):
        np.testing.assert_allclose(got, tensor, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("make", [np.float32, torch.tensor, lambda v: torch.tensor(v).repeat_interleave(2)[::2]])
def test_running_statistics_are_updated_in_place_whatever_holds_them(make):
    x = example("batch", (4, 3, 5)).x
    x = x if make is np.float32 else torch.from_numpy(x)
    running_mean, running_var = make([0.0, 0.0, 0.0]), make([1.0, 1.0, 1.0])
    _, mean, _ = family.batch_norm(x, running_mean, running_var, momentum=1.0)
    np.testing.assert_array_equal(running_mean, mean)
    assert (np.asarray(running_var) != 1).all()


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_evaluation_is_within_its_bounds(dtype, last):
    one = example("batch", (3, 4, 5), dtype, "float32", last=last)
    running = np.float32([0.5, -1, 0, 2]), np.float32([1, 0.25, 3, 1e-3])
    kept = [array.copy() for array in running]
    results = family.batch_norm(one.x, *running, one.weight, one.bias, training=False, eps=one.eps)
    gradients = family.batch_norm_backward(one.grad_output, one.x, *results[1:], one.weight, one.bias, training=False)
    assert_bits(running, kept)
    affine = one.weight, one.bias, one.eps
    pairs = (
        (results, truth.evaluated_norm(one.x, *running, *affine),
         bounds.evaluated_norm_bound(one.x, *running, *affine, one.arithmetic)),
        (gradients, truth.evaluated_norm_backward(one.grad_output, one.x, *running, *affine),
         bounds.evaluated_norm_backward_bound(one.grad_output, one.x, *running, *affine, one.arithmetic)),
    )  # fmt: skip
    for got, want, limit in pairs:
        for what, mine, right, bound in zip(want._fields, got, want, limit, strict=True):
            hold(f"family evaluation {what}", mine, right, bound)


def test_instance_norm_uses_running_statistics_for_every_sample():
    x = example("instance", (2, 3, 5)).x
    running = np.float32([0.5, -1, 0]), np.float32([1, 0.25, 3])
    output, mean, invvar = family.instance_norm(x, *running, use_input_stats=False)
    want, *_ = family.batch_norm(x, *running, training=False)
    np.testing.assert_array_equal(output, want)
    np.testing.assert_array_equal(mean, np.tile(running[0], (2, 1)))
    assert invvar.shape == (2, 3)
    gradients = family.instance_norm_backward(x, x, mean, invvar, use_input_stats=False)
    np.testing.assert_array_equal(gradients[0], x * invvar[..., None])


# ---- arrays and errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", [False, True])
def test_torch_tensors_give_torch_tensors_as_they_lie(last):
    one = example("batch", (2, 3, 2, 2), last=last)
    x, dy, weight, bias = map(torch.from_numpy, (one.x, one.grad_output, one.weight, one.bias))
    layout = torch.channels_last if last else torch.contiguous_format
    results = family.batch_norm(x, None, None, weight, bias)
    gradients = family.batch_norm_backward(dy, x, *results[1:], weight, bias)
    assert results[0].is_contiguous(memory_format=layout)
    assert gradients[0].is_contiguous(memory_format=layout)
    wanted = one.forward()
    assert_bits([t.numpy() for t in (*results, *gradients)], (*wanted, *one.backward(*wanted[1:])))


def test_other_layouts_are_copied():
    one = example("group", (2, 4, 6), groups=2)
    strided = Example(one.norm, one.x[..., ::2], one.grad_output[..., ::2], one.weight, one.bias, groups=2)
    packed = Example(*(np.ascontiguousarray(a) if isinstance(a, np.ndarray) else a for a in vars(strided).values()))
    assert_bits(strided.examine(), packed.examine())
    mixed = Example(one.norm, channels_last(one.x), one.grad_output, one.weight, one.bias, groups=2)
    mixed.examine()


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("norm", NORMS)
def test_a_nan_spoils_its_own_set_and_no_other(norm, last):
    one = example(norm, (3, 4, 2, 5), groups=2, last=last)
    right = one.forward()
    one.x[1, 2, 0, 3] = np.nan
    output, mean, invvar = one.forward()
    spoilt = np.zeros(one.x.shape, bool)
    spoilt[{"batch": np.s_[:, 2], "instance": np.s_[1, 2], "group": np.s_[1, 2:]}[norm]] = True
    assert np.isnan(output[spoilt]).all()
    np.testing.assert_array_equal(output[~spoilt], right[0][~spoilt])
    assert np.isnan(mean).sum() == np.isnan(invvar).sum() == 1
    grad_input, grad_weight, grad_bias = one.backward(mean, invvar)
    assert (np.isnan(grad_input) == spoilt).all()
    assert np.isnan(grad_weight).sum() == {"batch": 1, "instance": 1, "group": 2}[norm]
    assert np.isfinite(grad_bias).all()


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 0, 3), (2, 4, 0)], ids=str)
@pytest.mark.parametrize("norm", NORMS)
def test_no_values_are_no_launch(norm, shape):
    x = np.empty(shape, np.float32)
    channels = shape[1]
    one = Example(norm, x, x, np.ones(channels, np.float32), np.ones(channels, np.float32), groups=2)
    running = np.zeros(channels, np.float32), np.ones(channels, np.float32)
    output, mean, invvar = one.forward() if norm == "group" else getattr(family, f"{norm}_norm")(x, *running)
    assert output.shape == x.shape
    assert not running[0].any()
    grad_input, grad_weight, grad_bias = one.backward(mean, invvar)
    assert grad_input.shape == x.shape
    assert not grad_weight.any()
    assert not grad_bias.any()


X = torch.randn(2, 5, 3)
FIVE, FOUR = torch.ones(5), torch.ones(4)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("batch_norm", (torch.randn(1, 4, 1), None, None, None, None, True)),
        ("instance_norm", (torch.randn(2, 4, 1),)),
        ("instance_norm", (torch.randn(2, 4),)),
        ("group_norm", (torch.randn(1, 4, 1), 4)),
        ("group_norm", (X, 2)),
        ("group_norm", (torch.randn(5), 1)),
        ("group_norm", (X, 5, FOUR)),
        ("batch_norm", (X, None, None, None, None, False)),
        ("instance_norm", (X, None, None, None, None, False)),
        ("batch_norm", (X, FOUR, FIVE, None, None, True)),
        ("batch_norm", (X, FIVE, FOUR, None, None, True)),
        ("batch_norm", (X, None, None, FOUR, None, True)),
        ("batch_norm", (X, None, None, FIVE, FOUR, True)),
        ("batch_norm", (X, FIVE, None, None, None, True)),
        ("batch_norm", (X, None, None, None, None, True, 0.1, 0.0)),
        ("batch_norm", (X, FIVE, FIVE, None, None, False, 0.1, -1.0)),
    ],
)
def test_errors_have_torch_s_words_and_nothing_is_launched(name, arguments, monkeypatch):
    monkeypatch.setattr(arrays.HostBackend, "launch", None)
    with pytest.raises((ValueError, RuntimeError)) as theirs:
        getattr(functional, name)(*arguments)
    with pytest.raises(ValueError) as mine:  # noqa: PT011  # the text is compared below
        getattr(family, name)(*arguments)
    words = str(theirs.value).replace("torch.Size(", "").replace(")", "")
    if "eps must be" in words:  # what it must be, torch says in other words since 2.13
        words, _, given = words.partition(" must be")
        assert str(mine.value).endswith(given.rpartition(",")[2])
    if name == "group_norm" and "more than 1 value" in words:  # torch shows a shape of its own making
        words = words.split("[")[0]
    assert words in str(mine.value)


N = X.numpy()
STAT = np.zeros(5, np.float32)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: family.batch_norm(N.tolist()), TypeError, "x must be a NumPy array, a torch tensor or"),
        (lambda: family.batch_norm(N.astype(int)), TypeError, "x must be one of float16, bfloat16, float32, float64, but got int64"),
        (lambda: family.batch_norm(N, None, None, STAT.astype(np.float16)), TypeError, "x is float32 and weight is float16: weight must be float32, or float32 if x is half"),
        (lambda: family.batch_norm(N.astype(np.float16), None, None, STAT, STAT.astype(np.float16)), TypeError, "Expected bias to be float32 (as weight), but got float16"),
        (lambda: family.batch_norm(N, momentum=None), TypeError, "momentum must be a real number, got None"),
        (lambda: family.batch_norm(N, eps="small"), TypeError, "eps must be a real number, got 'small'"),
        (lambda: family.group_norm(N, 0), ValueError, "Expected num groups to be greater than 0, got 0"),
        (lambda: family.group_norm(N, 2.0), TypeError, "num_groups must be an int, got 2.0"),
        (lambda: family.batch_norm_backward(N[:1], N, STAT, STAT), ValueError, "Expected grad_output to be of shape [2, 5, 3] (as x), but got [1, 5, 3]"),
        (lambda: family.batch_norm_backward(N.astype(np.float16), N, STAT, STAT), TypeError, "Expected grad_output to be float32 (as x), but got float16"),
        (lambda: family.batch_norm_backward(N, N, STAT[:4], STAT), ValueError, "Expected mean to be of shape [5] (a number for every set), but got [4]"),
        (lambda: family.instance_norm_backward(N, N, STAT, STAT), ValueError, "Expected mean to be of shape [2, 5] (a number for every set), but got [5]"),
        (lambda: family.batch_norm_backward(N, N, None, STAT), TypeError, "mean must be a NumPy array"),
        (lambda: family.batch_norm(X.to_sparse()), TypeError, "x must be a dense tensor, got one that is torch.sparse_coo"),
        (lambda: family.group_norm(X, 5, FIVE.to_sparse()), TypeError, "weight must be a dense tensor, got one that is torch.sparse_coo"),
        (lambda: family.layer_norm(torch.nested.nested_tensor([X[0], X[1]]), 3), TypeError, "x must be a dense tensor, got one that is nested"),
        (lambda: family.batch_norm(np.ma.masked_less(N, 0)), TypeError, "x must be a NumPy array without a mask"),
        (lambda: family.batch_norm_backward(N, N, STAT, STAT.astype(np.float64)), TypeError, "Expected invvar to be float32 (statistics are kept in accumulator precision), but got float64"),
    ],
)  # fmt: skip
def test_other_errors_name_what_was_given_and_what_is_needed_and_nothing_is_launched(call, kind, text, monkeypatch):
    monkeypatch.setattr(arrays.HostBackend, "launch", None)
    with pytest.raises(kind) as found:
        call()
    assert text in str(found.value)
