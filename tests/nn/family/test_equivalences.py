"""The family's norms are one another's special cases: as properties of the PyTorch face, values and gradients."""

import numpy as np
import torch
from family.examples import example
from hypothesis import given, settings
from hypothesis import strategies as st
from nn.family.faces import vectorised_arithmetic
from nn.norms import array, tensor

from normlab import nn
from normlab.oracle import family_bounds as bounds

sizes = st.integers(1, 5)
shapes = st.tuples(sizes, sizes, st.integers(2, 6)) | st.tuples(sizes, sizes, st.integers(2, 4), sizes)
offsets = st.sampled_from([0.0, 30.0])
seeds = st.integers(0, 1000)


def both(one, function) -> list[np.ndarray]:
    """Output and grad_input of a function of an example's x."""
    x = tensor(one.x).requires_grad_()
    output = function(x)
    return [array(output), array(torch.autograd.grad(output, x, tensor(one.grad_output))[0])]


def assert_equal(one, function, other) -> None:
    """Bit for bit."""
    for mine, theirs in zip(both(one, function), both(one, other), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def assert_close(one, function, other) -> None:
    """Each is off by its bound at most, which is the same for both: so they are at most twice that apart."""
    how = vectorised_arithmetic(one)
    errors = bounds.family_norm_bound(one.x, one.sets, None, None, one.eps, how)
    gradients = bounds.family_norm_backward_bound(one.grad_output, one.x, one.sets, None, None, one.eps, how, errors)
    limits = errors.output, gradients.grad_input
    for mine, theirs, limit in zip(both(one, function), both(one, other), limits, strict=True):
        assert (np.abs(mine.astype(np.float64) - theirs) <= 2 * limit).all()


def instance_norm_is_group_norm_of_single_channels(shape, offset, seed):
    one = example("instance", shape, affine="none", offset=offset, seed=seed)
    assert_equal(one, nn.instance_norm, lambda x: nn.group_norm(x, shape[1]))


@settings(max_examples=15)
@given(shapes, offsets, seeds)
def test_instance_norm_is_group_norm_of_single_channels(shape, offset, seed):
    instance_norm_is_group_norm_of_single_channels(shape, offset, seed)


@settings(max_examples=4)
@given(shapes, offsets, seeds)
def test_in_the_kernels_too(shape, offset, seed):
    with nn.engine("simulator"):
        instance_norm_is_group_norm_of_single_channels(shape, offset, seed)
        one = example("batch", (1, *shape[1:]), affine="none", offset=offset, seed=seed)
        assert_equal(one, nn.instance_norm, lambda x: nn.batch_norm(x, None, None, training=True))


@settings(max_examples=15)
@given(shapes, offsets, seeds)
def test_group_norm_of_one_group_is_layer_norm_over_channels_and_space(shape, offset, seed):
    one = example("group", shape, affine="none", offset=offset, seed=seed)
    assert_close(one, lambda x: nn.group_norm(x, 1), lambda x: nn.layer_norm(x, shape[1:]))


@settings(max_examples=15)
@given(shapes, offsets, seeds)
def test_batch_norm_of_one_sample_is_its_instance_norm(shape, offset, seed):
    one = example("batch", (1, *shape[1:]), affine="none", offset=offset, seed=seed)
    assert_close(one, lambda x: nn.batch_norm(x, None, None, training=True), nn.instance_norm)


@settings(max_examples=15)
@given(st.tuples(st.integers(2, 9), sizes), offsets, seeds)
def test_batch_norm_of_a_matrix_is_layer_norm_of_its_transpose(shape, offset, seed):
    one = example("batch", shape, affine="none", offset=offset, seed=seed)
    assert_close(one, lambda x: nn.batch_norm(x, None, None, training=True), lambda x: nn.layer_norm(x.T, shape[0]).T)
