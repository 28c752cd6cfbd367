"""The host functions of gated and modulated norms: what they return, and what they refuse."""

from functools import partial

import numpy as np
import pytest
from gated_norms import fixed_case, given

from normlab import (
    gated_rms_norm_backward,
    gated_rms_norm_forward,
    modulated_layer_norm_backward,
    modulated_layer_norm_forward,
    oracle,
)

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
GATE = X[::-1] / 10
HALF, WEIGHT, INVVAR = X.astype(np.float16), np.ones(4, np.float32), np.ones((2, 3), np.float32)
SCALE = np.ones((2, 4), np.float32)


def test_results_have_the_shapes_and_dtypes_that_are_promised():
    output, invvar = gated_rms_norm_forward(HALF, HALF, WEIGHT)
    assert (output.shape, output.dtype.name, invvar.shape, invvar.dtype.name) == (
        (2, 3, 4),
        "float32",
        (2, 3),
        "float32",
    )
    for saved, memory_efficient in ((HALF, False), (output, True)):
        found = gated_rms_norm_backward(X, saved, HALF, invvar, WEIGHT, memory_efficient=memory_efficient)
        assert [(one.shape, one.dtype.name) for one in found] == [
            ((2, 3, 4), "float16"), ((2, 3, 4), "float16"), ((4,), "float32"),
        ]  # fmt: skip
    assert gated_rms_norm_backward(HALF, HALF, HALF, invvar)[2] is None
    output, mean, invvar = modulated_layer_norm_forward(HALF, SCALE, SCALE)
    assert (output.dtype.name, mean.shape, invvar.dtype.name) == ("float32", (2, 3), "float32")
    found = modulated_layer_norm_backward(X, HALF, mean, invvar, SCALE, SCALE)
    assert [(one.shape, one.dtype.name) for one in found] == [
        ((2, 3, 4), "float16"), ((2, 4), "float32"), ((2, 4), "float32"),
    ]  # fmt: skip


@pytest.mark.parametrize("strides", ["backwards", "every other"])
def test_strided_arrays_give_the_bits_of_contiguous_ones(strides):
    view = X[::-1, :, ::-1] if strides == "backwards" else np.repeat(X, 2, axis=-1)[..., ::2]
    for got, want in zip(
        gated_rms_norm_forward(view, view), gated_rms_norm_forward(view.copy(), view.copy()), strict=True
    ):
        assert got.tobytes() == want.tobytes()
    parameters = view[:, 0]
    for got, want in zip(
        modulated_layer_norm_forward(view, parameters, parameters),
        modulated_layer_norm_forward(view.copy(), parameters.copy(), parameters.copy()),
        strict=True,
    ):
        assert got.tobytes() == want.tobytes()


GATED = partial(gated_rms_norm_backward, X, X, X, INVVAR)
MODULATED = partial(modulated_layer_norm_backward, X, X, INVVAR, INVVAR)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (
            lambda: gated_rms_norm_forward(X, X[:1]),
            ValueError,
            r"gate to be of shape \[2, 3, 4\] \(as x\), but got \[1, 3",
        ),
        (lambda: gated_rms_norm_forward(X, HALF), TypeError, "gate to be float32 .as x., but got float16"),
        (lambda: gated_rms_norm_forward(X, X, WEIGHT[:3]), ValueError, "weight to be of shape"),
        (lambda: gated_rms_norm_forward(X[0, 0, 0], X), TypeError, "x must be a NumPy array"),
        (lambda: gated_rms_norm_forward(X[..., :0], X[..., :0]), ValueError, "a last dimension of at least 1"),
        (lambda: gated_rms_norm_forward(X, X, eps="1"), TypeError, "eps must be a real number"),
        (
            lambda: gated_rms_norm_forward(X, X, norm_before_gate=2),
            ValueError,
            "norm_before_gate must be True or False",
        ),
        (lambda: GATED(WEIGHT[:3]), ValueError, "weight to be of shape"),
        (lambda: GATED(memory_efficient="exact"), ValueError, "memory_efficient must be True or False, got 'exact'"),
        (lambda: GATED(norm_before_gate=False, memory_efficient=True), ValueError, "needs norm_before_gate=True"),
        (lambda: gated_rms_norm_backward(HALF, X, X, INVVAR), TypeError, "grad_output to be float32"),
        (lambda: gated_rms_norm_backward(X, HALF, X, INVVAR), TypeError, "saved to be float32 .x's dtype"),
        (lambda: gated_rms_norm_backward(X, X[:1], X, INVVAR), ValueError, "saved to be of shape"),
        (lambda: gated_rms_norm_backward(X, X, X, INVVAR[0]), ValueError, "invvar to be of shape"),
        (lambda: modulated_layer_norm_forward(X, SCALE[:1], SCALE), ValueError, r"scale to be of shape \[2, 4\]"),
        (lambda: modulated_layer_norm_forward(X, SCALE, X), ValueError, r"shift to be of shape \[2, 4\]"),
        (
            lambda: modulated_layer_norm_forward(X[0, 0], SCALE, SCALE),
            ValueError,
            r"\(samples, ..., n\), got shape \[4\]",
        ),
        (lambda: modulated_layer_norm_forward(X, SCALE, HALF[:, 0]), TypeError, "shift to be float32 .as scale"),
        (
            lambda: modulated_layer_norm_forward(X, SCALE.astype(np.float64), SCALE.astype(np.float64)),
            TypeError,
            "x is float32 and scale is float64",
        ),
        (lambda: modulated_layer_norm_backward(HALF, X, INVVAR, INVVAR, SCALE, SCALE), TypeError, "grad_output to be"),
        (
            lambda: modulated_layer_norm_backward(X[:1], X, INVVAR, INVVAR, SCALE, SCALE),
            ValueError,
            "grad_output to be",
        ),
        (
            lambda: modulated_layer_norm_backward(X, X, INVVAR[:1], INVVAR, SCALE, SCALE),
            ValueError,
            "mean to be of shape",
        ),
        (lambda: MODULATED(SCALE, None), TypeError, "shift"),
    ],
)
def test_a_wrong_argument_is_named_before_anything_runs(call, error, said):
    with pytest.raises(error, match=said):
        call()


@pytest.mark.parametrize("before", [True, False])
def test_the_oracle_s_gradients_are_the_slopes_of_its_forward(before):
    case, step = fixed_case(2, 5, "float64", before), 1e-6
    arrays = list(given(case))[:3]
    found = oracle.gated_rms_norm_backward(case.norm.grad_output, *arrays, case.norm.eps, before)

    def loss(*arrays):
        return (oracle.gated_rms_norm(*arrays, case.norm.eps, before).output * case.norm.grad_output).sum()

    for position, gradient in enumerate(found):
        for index in np.ndindex(arrays[position].shape):
            moved = [[array.copy() for array in arrays] for _ in range(2)]
            moved[0][position][index] += step
            moved[1][position][index] -= step
            slope = (loss(*moved[0]) - loss(*moved[1])) / (2 * step)
            assert slope == pytest.approx(gradient[index], rel=1e-6, abs=1e-8)


def test_the_modulated_oracle_s_gradients_are_the_slopes_of_its_forward():
    rng, step = np.random.default_rng(0), 1e-6
    x, grad_output = rng.normal(size=(2, 2, 2, 5))
    arrays = [x, *rng.normal(size=(2, 2, 5))]
    found = oracle.modulated_layer_norm_backward(grad_output, *arrays, 1e-5)
    for position, gradient in enumerate(found):
        for index in np.ndindex(arrays[position].shape):
            moved = [[array.copy() for array in arrays] for _ in range(2)]
            moved[0][position][index] += step
            moved[1][position][index] -= step
            up, down = ((oracle.modulated_layer_norm(*one, 1e-5).output * grad_output).sum() for one in moved)
            assert (up - down) / (2 * step) == pytest.approx(gradient[index], rel=1e-6, abs=1e-8)
