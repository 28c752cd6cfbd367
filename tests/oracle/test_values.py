import re

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normlab.host.checks import shape_of
from normlab.oracle import (
    Arithmetic,
    layer_norm,
    layer_norm_backward,
    layer_norm_bound,
    rms_norm,
    rms_norm_backward,
    rms_norm_backward_bound,
)

AFFINE = [(False, False), (True, False), (False, True), (True, True)]


def drawn(seed=0, n1=3, n2=5, has_weight=True, has_bias=True):
    rng = np.random.default_rng(seed)
    x, dy = rng.normal(size=(2, n1, n2))
    return x, dy, rng.normal(size=n2) if has_weight else None, rng.normal(size=n2) if has_bias else None


def loss(dy, x, weight, bias, eps, rms):
    """Σ ∂L/∂y y in extended precision, from the formula alone."""
    x = x if rms else x - x.sum(-1, keepdims=True) / x.shape[-1]
    y = x / np.sqrt((x * x).sum(-1, keepdims=True) / x.shape[-1] + eps)
    y = y if weight is None else y * weight
    y = y if bias is None else y + bias
    return (dy * y).sum()


def central_differences(f, at):
    """∂f/∂at, elementwise."""
    slopes, step = np.zeros(at.shape), np.longdouble(1e-5)
    for index in np.ndindex(at.shape):
        there, back = at.copy(), at.copy()
        there[index] += step
        back[index] -= step
        slopes[index] = (f(there) - f(back)) / (2 * step)
    return slopes


@pytest.mark.parametrize(
    ("has_weight", "has_bias", "rms"),
    [(*affine, False) for affine in AFFINE] + [(False, False, True), (True, False, True)],
)
@pytest.mark.parametrize("n2", [1, 2, 5])
@pytest.mark.parametrize("eps", [1e-5, 0.5])
def test_gradients_are_the_slopes_of_the_forward(has_weight, has_bias, rms, n2, eps):
    x, dy, weight, bias = (
        None if v is None else v.astype(np.longdouble) for v in drawn(n2=n2, has_weight=has_weight, has_bias=has_bias)
    )
    if rms:
        gradients = rms_norm_backward(dy, x, n2, weight, eps)
    else:
        gradients = layer_norm_backward(dy, x, n2, weight, bias, eps)
    close = {"rtol": 1e-8, "atol": 1e-8}
    np.testing.assert_allclose(
        gradients.grad_input, central_differences(lambda v: loss(dy, v, weight, bias, eps, rms), x), **close
    )
    assert (gradients.grad_weight is None) == (weight is None)
    assert (gradients.grad_bias is None) == (bias is None)
    if weight is not None:
        slopes = central_differences(lambda v: loss(dy, x, v, bias, eps, rms), weight)
        np.testing.assert_allclose(gradients.grad_weight, slopes, **close)
    if bias is not None:
        slopes = central_differences(lambda v: loss(dy, x, weight, v, eps, rms), bias)
        np.testing.assert_allclose(gradients.grad_bias, slopes, **close)


@pytest.mark.parametrize(("has_weight", "has_bias"), AFFINE)
def test_values_agree_with_pytorch_in_float64(has_weight, has_bias):
    x, dy, weight, bias = drawn(n1=7, n2=33, has_weight=has_weight, has_bias=has_bias)
    leaves = [None if v is None else torch.tensor(v, requires_grad=True) for v in (x, weight, bias)]
    close = {"rtol": 1e-12, "atol": 1e-13}

    output = torch.nn.functional.layer_norm(leaves[0], (33,), leaves[1], leaves[2], 1e-5)
    np.testing.assert_allclose(layer_norm(x, 33, weight, bias).output, output.detach().numpy(), **close)
    output.backward(torch.tensor(dy))
    for got, leaf in zip(layer_norm_backward(dy, x, 33, weight, bias), leaves, strict=True):
        assert (got is None) == (leaf is None)
        if leaf is not None:
            np.testing.assert_allclose(got, leaf.grad.numpy(), **close)

    output = torch.nn.functional.rms_norm(leaves[0], (33,), leaves[1], 1e-5)
    np.testing.assert_allclose(rms_norm(x, 33, weight).output, output.detach().numpy(), **close)


@given(st.integers(0, 2**32), st.floats(-1e6, 1e6), st.integers(-20, 20))
def test_shifting_a_row_and_scaling_it_with_the_root_of_eps_changes_nothing(seed, shift, power):
    x, *_ = drawn(seed)
    scale = 2.0**power
    near = {"rtol": 1e-9, "atol": 1e-9}  # x + shift itself rounds to 1e-16 of 1e6
    np.testing.assert_allclose(layer_norm(x + shift, 5).output, layer_norm(x, 5).output, **near)
    np.testing.assert_array_equal(layer_norm(x * scale, 5, eps=1e-5 * scale**2).output, layer_norm(x, 5).output)
    np.testing.assert_array_equal(rms_norm(x * scale, 5, eps=1e-5 * scale**2).output, rms_norm(x, 5).output)


@given(st.integers(0, 2**32), st.sampled_from([1e-12, 1e-5, 0.5]))
def test_grad_input_is_orthogonal_to_ones_and_up_to_eps_to_x_hat(seed, eps):
    x, dy, weight, _ = drawn(seed, n2=9)
    grad_input = layer_norm_backward(dy, x, 9, weight, None, eps).grad_input
    size = abs(grad_input).sum(axis=1)
    np.testing.assert_allclose(grad_input.sum(axis=1) / size, 0, atol=1e-13)
    # Σ ∂L/∂x x̂ = r Σ g x̂ (1 - Σ x̂² / n), and 1 - Σ x̂² / n = ε / (σ² + ε)
    xhat, _, invvar = layer_norm(x, 9, eps=eps)
    left = invvar * (dy * weight * xhat).sum(axis=1) * eps * invvar**2
    np.testing.assert_allclose((grad_input * xhat).sum(axis=1) / size, left / size, atol=1e-13)


def test_everything_is_float64_whatever_comes_in():
    whole = np.arange(12).reshape(2, 6)
    want = layer_norm_backward(whole.astype(float), whole.astype(float), 6, whole[0].astype(float))
    for dtype in (np.int32, np.float16, np.float32, ml_dtypes.bfloat16):
        values = whole.astype(dtype)
        got = layer_norm_backward(values, values, 6, values[0])
        assert got.grad_bias is None
        for name in ("grad_input", "grad_weight"):
            assert getattr(got, name).dtype == np.float64
            np.testing.assert_array_equal(getattr(got, name), getattr(want, name))


@pytest.mark.parametrize("dtype", [torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_torch_tensors_come_in_with_gradients_or_without(dtype):
    whole = np.arange(12.0).reshape(2, 6)
    want = layer_norm_backward(whole, whole, 6, whole[0], whole[1])
    x = torch.tensor(whole).to(dtype)
    x.requires_grad_(dtype.is_floating_point)
    for name, got in layer_norm_backward(x, x, x.shape[1:], x[0], x[1])._asdict().items():
        np.testing.assert_array_equal(got, getattr(want, name))
    np.testing.assert_array_equal(rms_norm(x, 6, x[0]).output, rms_norm(whole, 6, whole[0]).output)


@pytest.mark.parametrize(
    "four", [4, np.int64(4), np.uint8(4), (4,), [4], [np.int32(4)], np.array([4]), torch.Size([4])]
)
def test_a_normalized_shape_is_what_normlab_ops_takes_too(four):
    x = np.arange(8.0).reshape(2, 4)
    np.testing.assert_array_equal(layer_norm(x, four).output, layer_norm(x, 4).output)
    assert shape_of(four) == (4,)


@pytest.mark.parametrize("shape", [4.0, np.float64(4), None, "4", (4.0,), [None], np.array([4.0]), np.array(4)])
def test_a_normalized_shape_of_anything_but_ints_is_refused_by_name(shape):
    text = re.escape(f"normalized_shape must be an int or a tuple of ints, got {shape!r}")
    for taker in (shape_of, lambda shape: rms_norm(np.ones((2, 4)), shape)):
        with pytest.raises(TypeError, match=text):
            taker(shape)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1 + 0j, 2], "complex128"),
        (np.complex64([1, 2]), "complex64"),
        (torch.tensor([1j, 2]), "complex64"),
        ([1.0, None], "object"),
        (np.array([1, 2], object), "object"),
        (["1", "2"], "<U1"),
        ([b"1", b"2"], r"\|S1"),
        (np.array([1, 2], "M8[s]"), r"datetime64\[s\]"),
    ],
)
def test_what_is_not_real_is_refused_by_its_dtype(values, dtype):
    x = np.ones(2)
    for name, call in {
        "x": lambda: rms_norm(values, 2),
        "weight": lambda: layer_norm(x, 2, values),
        "bias": lambda: layer_norm(x, 2, x, values),
        "grad_output": lambda: rms_norm_backward(values, x, 2),
    }.items():
        with pytest.raises(TypeError, match=f"^{name} has dtype {dtype}, but real numbers are needed$"):
            call()


@pytest.mark.parametrize("eps", [None, "1e-5", 1j, [1e-5]])
def test_an_eps_that_is_no_number_is_refused(eps):
    x = np.ones((2, 3))
    arithmetic = Arithmetic(row_terms=3, row_merges=0, column_terms=2, column_merges=0)
    for call in (
        lambda: layer_norm(x, 3, eps=eps),
        lambda: rms_norm_backward(x, x, 3, eps=eps),
        lambda: layer_norm_bound(x, 3, None, None, eps, arithmetic),
        lambda: rms_norm_backward_bound(x, x, 3, None, eps, arithmetic),
    ):
        with pytest.raises(TypeError, match=re.escape(f"eps must be a real number, got {eps!r}")):
            call()


def test_eps_is_a_float_of_any_size():
    x = np.float64([[1, 2, 4]])
    assert layer_norm(x, 3, eps=1e300).invvar == pytest.approx([1e-150])
    for infinite in (np.inf, 10**400, np.float32(np.inf)):
        output, _, invvar = layer_norm(x, 3, None, [1, 2, 3], infinite)
        assert invvar.tolist() == [0]
        assert output.tolist() == [[1, 2, 3]]
    for nan in (np.nan, -np.inf, -(10**400)):
        assert np.isnan(layer_norm(x, 3, eps=nan).output).all()
        assert np.isnan(rms_norm_backward(x, x, 3, x[0], nan).grad_weight).all()


def test_shapes_follow_the_input_and_the_normalized_shape():
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 5))
    output, mean, invvar = layer_norm(x, (4, 5), np.ones((4, 5)), np.ones((4, 5)))
    assert (output.shape, mean.shape, invvar.shape) == ((2, 3, 4, 5), (2, 3), (2, 3))
    gradients = layer_norm_backward(x, x, (4, 5), np.ones((4, 5)), np.ones((4, 5)))
    assert [g.shape for g in gradients] == [(2, 3, 4, 5), (4, 5), (4, 5)]
    assert rms_norm(x, (4, 5)).mean is None
    assert layer_norm(x[0, 0, 0], 5).invvar.shape == ()


def test_no_rows_give_empty_results_and_zero_parameter_gradients():
    x = np.zeros((0, 4))
    assert [v.shape for v in layer_norm(x, 4)] == [(0, 4), (0,), (0,)]
    grad_input, grad_weight, grad_bias = layer_norm_backward(x, x, 4, np.ones(4), np.ones(4))
    assert grad_input.shape == (0, 4)
    assert grad_weight.tolist() == grad_bias.tolist() == [0, 0, 0, 0]


def test_a_negative_variance_plus_eps_gives_nan_in_silence():
    output, mean, invvar = layer_norm([[1.0, 2.0], [1.0, 9.0]], 2, eps=-0.5)
    assert np.isnan(output).tolist() == [[True, True], [False, False]]
    assert mean.tolist() == [1.5, 5.0]
    assert np.isnan(invvar).tolist() == [True, False]


def test_infinity_and_nan_stay_in_their_row_and_reach_the_parameter_gradients():
    x, dy, weight, bias = drawn(n1=4)
    clean = layer_norm_backward(dy, x, 5, weight, bias)
    x[1, 2], x[2, 0] = np.inf, np.nan
    output, mean, invvar = layer_norm(x, 5, weight, bias)
    assert np.isnan(output).all(axis=1).tolist() == [False, True, True, False]
    assert mean[1] == np.inf
    assert np.isnan(invvar).tolist() == [False, True, True, False]
    grad_input, grad_weight, grad_bias = layer_norm_backward(dy, x, 5, weight, bias)
    np.testing.assert_array_equal(grad_input[[0, 3]], clean.grad_input[[0, 3]])
    assert np.isnan(grad_input[[1, 2]]).all()
    assert np.isnan(grad_weight).all()
    np.testing.assert_array_equal(grad_bias, clean.grad_bias)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: layer_norm(np.ones((2, 3)), 4),
            r"normalized_shape=\(4,\) does not match the trailing dimensions of x, shape \(2, 3\)",
        ),
        (lambda: rms_norm(np.ones(3), (2, 3)), r"normalized_shape=\(2, 3\) does not match .* shape \(3,\)"),
        (lambda: layer_norm(np.ones((2, 3)), ()), r"normalized_shape=\(\) holds no values"),
        (lambda: layer_norm(np.ones((2, 0)), 0), r"normalized_shape=\(0,\) holds no values"),
        (lambda: layer_norm(np.ones((2, 3)), 3, np.ones(2)), r"weight has shape \(2,\), but normalized_shape=\(3,\)"),
        (
            lambda: layer_norm(np.ones((2, 3)), 3, None, np.ones((1, 3))),
            r"bias has shape \(1, 3\), but normalized_shape=\(3,\)",
        ),
        (
            lambda: rms_norm_backward(np.ones((3, 2)), np.ones((2, 3)), 3),
            r"grad_output has shape \(3, 2\), but x has shape \(2, 3\)",
        ),
    ],
)
def test_a_mismatch_names_both_sides(call, text):
    with pytest.raises(ValueError, match=text):
        call()
