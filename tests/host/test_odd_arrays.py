"""Arrays whose elements do not lie at multiples of their size, and arguments of the exact mode that do not fit."""

import ml_dtypes
import numpy as np
import pytest

import normlab
from normlab import family
from normlab.host.exact import Kept

RNG = np.random.default_rng(0)
X, GRAD = RNG.normal(size=(2, 3, 2, 8)).astype(np.float32)
WEIGHT = RNG.normal(size=8).astype(np.float32)
OUTPUT, MEAN, INVVAR = normlab.layer_norm_forward(X, 8, WEIGHT, WEIGHT)


def off_by_a_byte(array):
    """The same values one byte after a multiple of their size."""
    view = np.zeros(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def in_packed_records(array):
    """The same values as a field of records, with one byte after each."""
    records = np.zeros(len(array), [("values", array.dtype, array.shape[1:]), ("label", "u1")])
    records["values"] = array
    return records["values"]


CALLS = {
    "layer norm": lambda x, grad: normlab.layer_norm_forward(x, 8, WEIGHT),
    "its backward": lambda x, grad: normlab.layer_norm_backward(grad, x, MEAN, INVVAR, 8, WEIGHT),
    "a sum": lambda x, grad: normlab.add_layer_norm_forward(x, grad),
    "heads": lambda x, grad: normlab.head_rms_norm_forward(x, WEIGHT),
    "their backward": lambda x, grad: normlab.head_rms_norm_backward(grad, x, INVVAR, WEIGHT),
    "a gate": lambda x, grad: normlab.gated_rms_norm_forward(x, grad),
    "a group": lambda x, grad: family.group_norm(x, 1),
    "a product": lambda x, grad: (normlab.sgemm(x[0], grad[0].T),),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("place", [off_by_a_byte, in_packed_records])
def test_elements_may_lie_anywhere(call, place):
    for got, want in zip(call(place(X), place(GRAD)), call(X, GRAD), strict=True):
        np.testing.assert_array_equal(got, want)


def test_running_statistics_may_lie_anywhere():
    mean, var = off_by_a_byte(np.zeros(2, np.float32)), off_by_a_byte(np.ones(2, np.float32))
    family.batch_norm(X, mean, var, momentum=1.0)
    np.testing.assert_allclose(mean, X.mean(axis=(0, 2)), rtol=1e-5)
    np.testing.assert_allclose(var, X.var(axis=(0, 2), ddof=1), rtol=1e-5)


@pytest.mark.parametrize("named", [np.float16, np.dtype(np.float16), np.dtype(">f2"), "float16"])
def test_numpy_names_a_dtype_by_a_class_too(named):
    how = {"memory_efficient": True, "input_dtype": named}
    grad, *_ = normlab.layer_norm_backward(GRAD, OUTPUT, None, INVVAR, 8, WEIGHT, WEIGHT, **how)
    assert grad.dtype == np.float16
    how = {"memory_efficient": True, "residual_dtype": ml_dtypes.bfloat16}
    grad, _ = normlab.add_rms_norm_backward(GRAD, None, OUTPUT, INVVAR, WEIGHT, **how)
    assert grad.dtype == ml_dtypes.bfloat16


COLUMNS, VALUES = np.zeros(1, np.int32), np.zeros((6, 1), np.float32)


@pytest.mark.parametrize(
    ("kept", "kind", "text"),
    [
        ((COLUMNS, VALUES), TypeError, "the Kept that normlab.keep_columns returned, got builtins.tuple"),
        (Kept([0], VALUES), TypeError, "kept.columns must be a NumPy array"),
        (Kept(COLUMNS, None), TypeError, "kept.values must be a NumPy array"),
        (Kept(COLUMNS[0:1].reshape(()), VALUES), ValueError, r"Expected kept.columns to be of shape \[1\]"),
    ],
)
def test_kept_that_does_not_fit_is_named(kept, kind, text):
    with pytest.raises(kind, match=text):
        normlab.layer_norm_backward(GRAD, X, MEAN, INVVAR, 8, WEIGHT, memory_efficient="exact", kept=kept)


def test_columns_must_be_a_vector():
    with pytest.raises(ValueError, match=r"Expected columns to be of shape \[1\] \(column numbers\), but got \[\]"):
        normlab.keep_columns(X, MEAN, INVVAR, 8, WEIGHT, columns=np.array(1, np.int32))
