"""The host functions of norms of x + residual: what they return, what they refuse, and what their kernels ask for."""

from functools import partial

import ml_dtypes
import numpy as np
import pytest
from add_norms import fixed_case
from counting import COPIED, LOADED, STORED, counted
from draws import sampled

from normlab import (
    add_layer_norm_backward,
    add_layer_norm_forward,
    add_rms_norm_backward,
    add_rms_norm_forward,
    explain,
    head_rms_norm_backward,
    oracle,
)
from normlab.engine import compile_ptx, cuda, launch, load, resources, rounded, store
from normlab.kernels import Device, Plan, Problem, add_norm
from normlab.kernels.apart import EXTRA
from normlab.learn.explain import types_of

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
HALF = X.astype(np.float16)
MEAN, INVVAR, WEIGHT = np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32), np.ones(4, np.float32)


def test_results_have_the_shapes_and_dtypes_that_are_promised():
    output, new_residual, mean, invvar = add_layer_norm_forward(HALF, X, WEIGHT.astype(np.float16))
    assert [one.shape for one in (output, new_residual, mean, invvar)] == [(2, 3, 4), (2, 3, 4), (2, 3), (2, 3)]
    assert [one.dtype.name for one in (output, new_residual, mean)] == ["float16", "float32", "float32"]
    gradients = add_layer_norm_backward(HALF, X, new_residual, mean, invvar, WEIGHT.astype(np.float16))
    assert [one is None or (one.shape, one.dtype.name) for one in gradients] == [
        ((2, 3, 4), "float32"),
        ((4,), "float16"),
        True,
    ]


@pytest.mark.parametrize("strides", ["backwards", "every other"])
def test_strided_arrays_give_the_bits_of_contiguous_ones(strides):
    view = X[::-1, :, ::-1] if strides == "backwards" else np.repeat(X, 2, axis=-1)[..., ::2]
    for got, want in zip(add_rms_norm_forward(view, view), add_rms_norm_forward(view.copy(), view.copy()), strict=True):
        assert got.tobytes() == want.tobytes()


BACKWARD = partial(add_rms_norm_backward, X, X, X, INVVAR)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: add_rms_norm_forward(X, X[:1]), ValueError, r"x to be of shape \[1, 3, 4\] \(as residual\)"),
        (lambda: add_rms_norm_forward(X, X, WEIGHT[:3]), ValueError, "weight to be of shape"),
        (lambda: add_rms_norm_forward(X[0, 0, 0], X[0, 0, 0]), TypeError, "x must be a NumPy array"),
        (lambda: add_rms_norm_forward(X[..., :0], X[..., :0]), ValueError, "a last dimension of at least 1"),
        (lambda: add_rms_norm_forward(X.astype(np.float64), X), TypeError, "residual is float32 and x is float64"),
        (lambda: add_rms_norm_forward(X, X, eps="1"), TypeError, "eps must be a real number"),
        (lambda: add_rms_norm_forward(X, X, offset="1"), TypeError, "offset must be a real number"),
        (lambda: BACKWARD(WEIGHT[:3]), ValueError, "weight to be of shape"),
        (lambda: BACKWARD(memory_efficient="exact"), ValueError, "memory_efficient must be True or False"),
        (lambda: add_rms_norm_forward(X, None), TypeError, "residual must be an array, got None"),
        (lambda: add_layer_norm_forward(X, None), TypeError, "residual must be an array, got None"),
        (lambda: BACKWARD(residual_dtype="float16"), TypeError, "residual_dtype to be float32"),
        (lambda: add_rms_norm_backward(X, HALF, X, INVVAR), TypeError, "grad_residual to be float32"),
        (lambda: add_rms_norm_backward(X, X[:1], X, INVVAR), ValueError, "grad_residual to be of shape"),
        (lambda: add_rms_norm_backward(HALF, X, X, INVVAR), TypeError, "grad_output to be float32"),
        (lambda: add_rms_norm_backward(X, X, X, INVVAR[0]), ValueError, "invvar to be of shape"),
        (lambda: head_rms_norm_backward(X, X[:1], INVVAR[:1]), ValueError, r"\[1, 3, 4\] \(as x\)"),
        (lambda: head_rms_norm_backward(X, None, INVVAR), TypeError, "x must be a NumPy array"),
        (lambda: add_layer_norm_backward(X, X, X, None, INVVAR), ValueError, "mean is needed when saved is"),
    ],
)
def test_a_wrong_argument_is_named_before_anything_runs(call, error, said):
    with pytest.raises(error, match=said):
        call()


def test_a_gradient_of_nothing_at_the_sum_counts_as_zeros():
    x, weight = np.tile(X, 66), np.tile(WEIGHT, 66)  # short rows without that gradient have a kernel of their own
    _, new_residual, mean, invvar = add_layer_norm_forward(x, x, weight, weight)
    absent, zeros = (
        add_layer_norm_backward(x, grad, new_residual, mean, invvar, weight, weight)
        for grad in (None, np.zeros_like(x))
    )
    for one, other in zip(absent, zeros, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_oracle_s_gradient_is_the_slope_of_the_sum_s_own_loss():
    case = fixed_case(3, 5, "float64", rms=False)
    norm, step = case.norm, 1e-6

    def loss(x):
        output, new_residual, *_ = oracle.add_layer_norm(x, norm.x, norm.weight, norm.bias, norm.eps)
        return (output * norm.grad_output).sum() + (new_residual * case.grad_residual).sum()

    total = oracle.add_layer_norm(case.x, norm.x, None, None, norm.eps).new_residual
    found = oracle.add_layer_norm_backward(
        norm.grad_output, case.grad_residual, total, norm.weight, norm.bias, norm.eps
    ).grad_input
    for index in np.ndindex(case.x.shape):
        moved = np.zeros_like(case.x)
        moved[index] = step
        assert (loss(case.x + moved) - loss(case.x - moved)) / (2 * step) == pytest.approx(found[index], rel=1e-6)


@cuda.jit
def round_all(source, like, held):
    i = cuda.threadIdx.x
    store(held, i, rounded(load(source, i), like))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_rounded_is_what_a_store_and_a_load_leave(dtype):
    source = np.float32([*np.random.default_rng(0).normal(size=28), np.inf, -np.inf, 1e38, 3e-39])
    held = np.zeros(32, np.float64 if dtype is np.float64 else np.float32)
    launch(round_all, 1, 32, source, np.zeros(1, dtype), held)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(held, source.astype(dtype).astype(held.dtype))
    assert "round_all" in compile_ptx(round_all, ((np.float32, 1), (dtype, 1), (held.dtype.type, 1)), (9, 0))


def planned(direction: str, norm: str, n2: int, dtype: str, saved: str = "input") -> tuple[Plan, object]:
    problem = Problem(direction, norm, 8192, n2, dtype, saved=saved, residual=True)
    rung = add_norm.FORWARD if direction == "forward" else add_norm.BACKWARD
    return rung.plan(problem, Device.named("h100")), problem.described()


SHAPES = [(64, "bfloat16"), (1024, "float32"), (4096, "bfloat16"), (8192, "bfloat16")]


HOW = [("forward",), ("backward", "input"), ("backward", "output")]


@pytest.mark.parametrize(("norm", "shape", "how"), sampled(["rms", "layer"], SHAPES, HOW))
def test_no_kernel_with_a_residual_spills(norm, shape, how):
    n2, dtype = shape
    plan, operands = planned(how[0], norm, n2, dtype, *how[1:])
    assert not plan.step.endswith(EXTRA)
    taken = resources(plan.work[0].kernel, types_of(plan.work[0], plan, operands))
    assert (taken.local_bytes, taken.spill_stores, taken.spill_loads) == (0, 0, 0), taken


def test_two_matrices_come_in_and_two_go_out_each_once():
    rows = 8 * 1024 * 2 // 32  # of 1,024 bfloat16, in sectors of 32 bytes
    x, residual, dy, dr = np.random.default_rng(0).normal(size=(4, 8, 1024)).astype(ml_dtypes.bfloat16)
    results = []
    (forward,) = counted(lambda: results.extend(add_rms_norm_forward(x, residual)))
    assert forward[LOADED.format("sectors")] == 2 * rows
    assert forward[STORED.format("sectors")] == 2 * rows + 8  # and invvar, a sector each
    (backward,) = counted(lambda: add_rms_norm_backward(dy, dr, results[1], results[2]))
    assert backward[COPIED.format("sectors")] == 3 * rows
    assert backward[STORED.format("sectors")] == rows


def test_explain_tells_the_plan_of_a_norm_of_a_sum():
    found = explain("backward", norm="rms", dtype="bfloat16", n1=8192, n2=4096, residual=True, device="h100")
    assert found.plan.step == "pipelined"
    assert found.bytes_moved == 4 * 2 * 8192 * 4096
    assert found.runner_up.step == "pipelined and extra kernels"
    assert "RMSNorm of x + residual backward" in str(found)
    for wrong in ({"step": "apex"}, {"ladder": "sgemm"}):
        with pytest.raises(ValueError, match=r"no steps to choose from|ladder with residual=True"):
            explain(**{"ladder": "forward", "residual": True, **wrong})
