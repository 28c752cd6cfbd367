"""`normlab.sgemm`: kinds of arrays, layouts, special values as in BLAS, and every error by its text."""

import re

import numpy as np
import pytest
import torch

from normlab import engine, oracle, sgemm
from normlab.engine import gpu_available
from normlab.host import arrays, checks, matmul
from normlab.kernels import BEST, LADDERS

rng = np.random.default_rng(5)
STEP = "coalesced"  # which the simulator is quick with; tests/kernels/test_sgemm.py has them all
QUICK = pytest.mark.parametrize("step", ["naive", "vectors", "pipelined"])
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not gpu_available(), reason="needs a GPU"))]


def draw(*shape):
    return rng.normal(size=shape).astype(np.float32)


def assert_product(got, *given):
    oracle.assert_within(got, oracle.product(*given), oracle.product_bound(*given), "sgemm")


def test_a_call_takes_the_best_step(monkeypatch):
    asked = []
    real = matmul.checks.product_step
    monkeypatch.setattr(matmul.checks, "product_step", lambda name: asked.append(real(name).name) or real("naive"))
    sgemm(draw(2, 3), draw(3, 2))
    sgemm(draw(2, 3), draw(3, 2), step="padded")
    assert asked == [BEST["sgemm"], "padded"]


def test_numpy_arrays_give_numpy_arrays_and_are_not_changed():
    given = draw(3, 5), draw(5, 4), draw(3, 4)
    before = [array.copy() for array in given]
    got = sgemm(*given, 2, -0.5, step=STEP)
    assert (type(got), got.dtype, got.shape) == (np.ndarray, np.float32, (3, 4))
    assert_product(got, *given, 2, -0.5)
    for array, was in zip(given, before, strict=True):
        np.testing.assert_array_equal(array, was)


@pytest.mark.parametrize("device", DEVICES)
def test_torch_tensors_give_torch_tensors_where_they_were(device):
    a, b, c = draw(3, 5), draw(5, 4), draw(3, 4)
    tensors = [torch.from_numpy(array).to(device).requires_grad_() for array in (a, b, c)]
    got = sgemm(*tensors, 0.3, 3.0, step=STEP)
    assert (type(got), got.dtype, got.device.type, got.requires_grad) == (torch.Tensor, torch.float32, device, False)
    assert_product(got.cpu().numpy(), a, b, c, 0.3, 3.0)


@pytest.mark.skipif(not gpu_available(), reason="needs a GPU")
def test_cuda_array_interface_arrays_give_their_own_kind_back():
    from numba import cuda

    a, b = draw(3, 5), draw(5, 4)
    got = sgemm(cuda.to_device(a), cuda.to_device(b))
    assert isinstance(got, cuda.devicearray.DeviceNDArray)
    assert_product(got.copy_to_host(), a, b)


@QUICK
@pytest.mark.parametrize("kind", ["transposed", "every other row", "reversed", "a row for all", "shifted by 4 bytes"])
def test_views_are_taken_as_they_look(kind, step):
    views = {
        "transposed": lambda m, n: draw(n, m).T,
        "every other row": lambda m, n: draw(2 * m, n)[::2],
        "reversed": lambda m, n: draw(m, n)[::-1, ::-1],
        "a row for all": lambda m, n: np.broadcast_to(draw(1, n), (m, n)),
        "shifted by 4 bytes": lambda m, n: draw(m * n + 1)[1:].reshape(m, n),
    }
    a, b, c = (views[kind](*shape) for shape in ((3, 8), (8, 4), (3, 4)))
    with engine.using("simulator"):
        assert_product(sgemm(a, b, c, 1.5, 1.0, step=step), a, b, c, 1.5, 1.0)


def test_transposed_tensors_are_taken_as_they_look():
    a, b = torch.from_numpy(draw(5, 3)).T, torch.from_numpy(draw(4, 5)).T
    assert_product(sgemm(a, b, step=STEP).numpy(), a.numpy(), b.numpy())


# ---- special values, as in BLAS --------------------------------------------------------------------------------------


@QUICK
def test_with_beta_0_nothing_of_c_comes_in(step):
    a, b, c = draw(2, 3), draw(3, 4), np.full((2, 4), np.nan, np.float32)
    assert_product(sgemm(a, b, c, step=step), a, b)
    assert_product(sgemm(a, b, c, beta=1e-60, step=step), a, b)  # which is 0 in float32


@QUICK
def test_with_alpha_0_nothing_of_a_and_b_comes_in(step):
    nan, c = np.full((2, 2), np.nan, np.float32), draw(2, 2)
    np.testing.assert_array_equal(sgemm(nan, nan, c, alpha=0, beta=2, step=step), 2 * c)
    np.testing.assert_array_equal(sgemm(nan, nan, alpha=0, step=step), np.zeros((2, 2)))


@QUICK
def test_a_product_over_nothing_is_0_and_only_c_remains(step):
    none, c = np.empty((2, 0), np.float32), draw(2, 3)
    b = np.empty((0, 3), np.float32)
    np.testing.assert_array_equal(sgemm(none, b, step=step), np.zeros((2, 3)))
    np.testing.assert_array_equal(sgemm(none, b, c, np.inf, 1.0, step=step), c)


@pytest.mark.parametrize(("m", "n"), [(0, 4), (4, 0), (0, 0)])
def test_no_rows_or_columns_give_an_empty_product_without_a_launch(m, n, monkeypatch):
    monkeypatch.setattr(arrays.HostBackend, "launch", None)
    got = sgemm(draw(m, 3), draw(3, n), draw(m, n), 1.0, 1.0)
    assert (got.shape, got.dtype) == ((m, n), np.float32)


@QUICK
def test_nan_and_infinity_stay_in_their_row_and_column(step):
    a, b, c = draw(5, 6), draw(6, 7), draw(5, 7)
    a[1, 2], b[3, 4], a[4, 0] = np.nan, np.inf, -np.inf
    with engine.using("simulator"):
        got = sgemm(a, b, c, 2.0, 1.0, step=step)
    assert_product(got, a, b, c, 2.0, 1.0)
    assert np.isnan(got[1]).all()
    assert np.isinf(got[:, 4])[[0, 2, 3]].all()
    assert np.isinf(got[4]).sum() >= 6
    assert np.isfinite(np.delete(got, 4, 1)[[0, 2, 3]]).all()


@pytest.mark.parametrize("step", [BEST["sgemm"], "double_buffer", STEP])  # the first: with cp.async, in a ring
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_nan_and_infinity_are_where_blas_has_them(beta, device, step):
    a, b, c = draw(5, 26), draw(26, 7), draw(5, 7)  # 26: several tiles, where a step has any
    a[1, 2], b[3, 4], a[4, 0], a[2, 1], b[1, 6] = np.nan, np.inf, -np.inf, np.inf, 0
    c[0, 0], c[3, 3] = np.nan, -np.inf
    a, b, c = (torch.from_numpy(array).to(device) for array in (a, b, c))
    got, want = sgemm(a, b, c, 2.0, beta, step=step), torch.addmm(c, a, b, alpha=2.0, beta=beta)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert got[1].isnan().all()
    assert (bool(got[2, 6].isnan()), bool(got[0, 0].isnan())) == (True, beta != 0)  # infinity times 0; from c


def test_alpha_and_beta_may_be_nan_or_too_large():
    a, b, c = draw(2, 3), draw(3, 2), draw(2, 2)
    assert np.isnan(sgemm(a, b, c, np.nan, 1.0, step=STEP)).all()
    assert np.isnan(sgemm(a, b, c, 1.0, np.nan, step=STEP)).all()
    np.testing.assert_array_equal(np.isinf(sgemm(a, b, alpha=1e300, step=STEP)), True)


# ---- errors, before anything is launched ----------------------------------------------------------------------------

A, B, C = draw(2, 3), draw(3, 4), draw(2, 4)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ((A, B.T), ValueError, "a and b shapes cannot be multiplied (2x3 and 4x3)"),
        ((A[0], B), ValueError, "a must be a matrix, got 1-D of shape [3]"),
        ((A, B[None]), ValueError, "b must be a matrix, got 3-D of shape [1, 3, 4]"),
        ((A, B, C.T, 1, 1), ValueError, "Expected c to be of shape [2, 4] (rows of a and columns of b), but got [4, 2]"),
        ((A, B, C[0]), ValueError, "Expected c to be of shape [2, 4] (rows of a and columns of b), but got [4]"),
        ((A, B, None, 1, 0.5), ValueError, "c is needed where beta is not 0, got c=None and beta=0.5"),
        ((A.astype(np.float64), B), TypeError, "Expected a to be float32 (the one dtype of the SGEMM ladder), but got float64"),
        ((A, B.astype(np.float16)), TypeError, "Expected b to be float32 (the one dtype of the SGEMM ladder), but got float16"),
        ((A, B, C.astype(np.int32)), TypeError, "Expected c to be float32 (the one dtype of the SGEMM ladder), but got int32"),
        ((A.tolist(), B), TypeError, "a must be a NumPy array, a torch tensor or an array with __cuda_array_interface__, got builtins.list"),
        ((A, B, None, "2"), TypeError, "alpha must be a real number, got '2'"),
        ((A, B, None, 1, 1j), TypeError, "beta must be a real number, got 1j"),
        ((A, torch.empty(3, 4, device="meta")), ValueError, "all arrays must be on one device, but a is on cpu and b is on meta"),
    ],
)  # fmt: skip
def test_what_cannot_be_multiplied_is_named_and_nothing_is_launched(given, error, text, monkeypatch):
    monkeypatch.setattr(arrays.HostBackend, "launch", None)
    with pytest.raises(error, match=f"^{re.escape(text)}$"):
        sgemm(*given)


def test_an_unknown_step_is_named_with_those_there_are():
    names = ", ".join(step.name for step in LADDERS["sgemm"])
    with pytest.raises(ValueError, match=f"^unknown step 'fast' of the sgemm ladder; known: {names}$"):
        sgemm(A, B, step="fast")


def test_a_long_simulation_is_announced(monkeypatch):
    monkeypatch.setattr(checks, "PATIENCE", 0.0)
    with engine.using("simulator"), pytest.warns(UserWarning, match="for step 'naive' on 2 x 4 x 3; smaller") as found:
        sgemm(A, B, step="naive")
    assert found[0].filename == __file__, "it names the line of the caller"
