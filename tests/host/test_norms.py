"""The host functions: kinds of arrays, layouts, edge shapes, special values, and every error by its text."""

import re

import ml_dtypes
import numpy as np
import pytest
import torch
from draws import DTYPES

from normlab import layer_norm_backward, layer_norm_forward, oracle, rms_norm_backward, rms_norm_forward
from normlab.engine import gpu_available
from normlab.host import checks
from normlab.host.exact import keep_columns
from normlab.kernels import BEST

rng = np.random.default_rng(7)


def draw(*shape, dtype=np.float32):
    return rng.normal(size=shape).astype(dtype)


def assert_forward(results, x, normalized_shape, weight=None, bias=None, eps=1e-5, step=None):
    """The results of a forward step (None: the best) on float32 rows, as NumPy arrays, within the oracle's bounds."""
    step = checks.step_of("forward", step)
    terms, merges = step.row_chains(int(np.prod(normalized_shape)))
    how = oracle.Arithmetic(
        row_terms=terms, row_merges=merges, column_terms=1, column_merges=0, statistics=step.statistics
    )
    truth = oracle.layer_norm(x, normalized_shape, weight, bias, eps)
    bound = oracle.layer_norm_bound(x, normalized_shape, weight, bias, eps, how)
    for what, got, want, limit in zip(truth._fields, results, truth, bound, strict=True):
        oracle.assert_within(got, want, limit, what)


# ---- kinds of arrays --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_arrays_give_numpy_arrays_of_the_documented_dtypes(dtype):
    x, weight, bias, grad = draw(3, 8), draw(8), draw(8), draw(3, 8)
    x, weight, bias, grad = (array.astype(DTYPES[dtype]) for array in (x, weight, bias, grad))
    output, mean, invvar = layer_norm_forward(x, 8, weight, bias)
    statistics = np.float64 if dtype == "float64" else np.float32
    assert (output.dtype, mean.dtype, invvar.dtype) == (x.dtype, statistics, statistics)
    assert (output.shape, mean.shape, invvar.shape) == ((3, 8), (3,), (3,))
    gradients = layer_norm_backward(grad, x, mean, invvar, 8, weight, bias)
    assert [(array.dtype, array.shape) for array in gradients] == [(x.dtype, (3, 8)), (x.dtype, (8,)), (x.dtype, (8,))]


@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not gpu_available(), reason="needs a GPU"))]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_tensors_give_torch_tensors_with_the_same_values(dtype, device):
    kind = getattr(torch, dtype)
    x, weight, bias, grad = (
        torch.from_numpy(a).to(device, kind) for a in (draw(4, 33), draw(33), draw(33), draw(4, 33))
    )
    forward = layer_norm_forward(x, 33, weight, bias)
    backward = layer_norm_backward(grad, x, *forward[1:], 33, weight, bias)
    rms = rms_norm_forward(x, 33, weight)
    rms_backward = rms_norm_backward(grad, rms[0], rms[1], 33, weight, memory_efficient=True)
    assert all(
        isinstance(t, torch.Tensor) and t.device.type == device for t in (*forward, *backward, *rms, *rms_backward)
    )
    assert forward[0].dtype == backward[0].dtype == backward[1].dtype == rms[0].dtype == kind

    numpy = lambda t: t.double().cpu().numpy().astype(DTYPES[dtype])  # noqa: E731
    same = layer_norm_forward(numpy(x), 33, numpy(weight), numpy(bias))
    np.testing.assert_array_equal(forward[0].double().cpu().numpy(), same[0].astype(np.float64))


def test_a_tensor_that_requires_grad_is_read_without_its_graph():
    x = torch.randn(2, 4, requires_grad=True)
    assert not layer_norm_forward(x, 4)[0].requires_grad


@pytest.mark.skipif(not gpu_available(), reason="needs a GPU")
def test_cuda_array_interface_arrays_give_their_own_kind_back():
    from numba import cuda

    x = draw(6, 40)
    assert_forward([a.copy_to_host() for a in layer_norm_forward(cuda.to_device(x), 40)], x, 40)
    cupy = pytest.importorskip("cupy")
    on_device = cupy.asarray(x)[::2, ::5]
    results = layer_norm_forward(on_device, 8)
    assert all(isinstance(a, cupy.ndarray) for a in results)
    assert_forward([cupy.asnumpy(a) for a in results], x[::2, ::5], 8)
    with cupy.cuda.Stream(non_blocking=True):
        on_device = cupy.asarray(x) * 2
        results = layer_norm_forward(on_device, 40)
        assert_forward([cupy.asnumpy(a) for a in results], 2 * x, 40)


@pytest.mark.skipif(not gpu_available(), reason="needs a GPU")
def test_kinds_of_gpu_arrays_are_not_mixed():
    from numba import cuda

    x, weight = draw(2, 8), cuda.to_device(draw(8))
    with raises(TypeError, "arrays on a GPU must be of one kind, but x is a torch.Tensor and weight a numba"):
        layer_norm_forward(torch.from_numpy(x).cuda(), 8, weight)
    with raises(ValueError, "all arrays must be on one device, but x is on cpu and weight is on cuda:0"):
        layer_norm_forward(x, 8, weight)


@pytest.mark.skipif(not gpu_available(), reason="needs a GPU")
def test_work_is_queued_on_torch_s_current_stream():
    x = torch.randn(4096, 4096, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        x.mul_(2)  # the norm must come after this
        output = layer_norm_forward(x, 4096, eps=0.0)[0]
    stream.synchronize()
    np.testing.assert_allclose(
        output[:2].cpu().numpy(), oracle.layer_norm(x[:2].cpu().numpy(), 4096, eps=0.0).output, atol=1e-5
    )


# ---- layouts ----------------------------------------------------------------------------------------------------------

BASE = draw(12, 20, 30)
LAYOUTS = {
    "contiguous": BASE,
    "sliced by 3, 5, 3": BASE[::3, ::5, ::3],
    "reversed": BASE[::-1, :, ::-1],
    "transposed": BASE.transpose(2, 1, 0),
    "expanded": np.broadcast_to(BASE[:1, :, :8], (4, 20, 8)),
    "offset": BASE[1:, 3:, 7:],
    "Fortran order": np.asfortranarray(BASE[:, :, :5]),
    "big-endian": BASE[:2, :3].astype(">f4"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strided_inputs_give_the_same_results_as_contiguous_ones(layout):
    x = LAYOUTS[layout][:3, :4]
    n2 = x.shape[-1]
    weight = draw(2 * n2)[::2]
    grad = np.broadcast_to(draw(n2), x.shape)
    plain = np.ascontiguousarray(x, np.float32)
    for got, want in zip(layer_norm_forward(x, n2, weight), layer_norm_forward(plain, n2, weight.copy()), strict=True):
        np.testing.assert_array_equal(got, want)
    _, mean, invvar = layer_norm_forward(plain, n2, weight)
    got = layer_norm_backward(grad, x, mean, invvar, n2, weight)
    want = layer_norm_backward(grad.copy(), plain, mean, invvar, n2, weight.copy())
    for a, b in zip(got[:2], want[:2], strict=True):
        np.testing.assert_array_equal(a, b)


def test_strided_torch_tensors_are_read_right():
    x = torch.from_numpy(BASE)[::3, ::5, ::3]
    output = layer_norm_forward(x, 10)[0]
    assert_forward([output.numpy(), *(t.numpy() for t in layer_norm_forward(x, 10)[1:])], x.numpy(), 10)


def test_inputs_are_not_written_to():
    arrays = [draw(2, 8), draw(8), draw(8), draw(2, 8)]
    for array in arrays:
        array.flags.writeable = False
    x, weight, bias, grad = arrays
    _, mean, invvar = layer_norm_forward(x, 8, weight, bias)
    layer_norm_backward(grad, x, mean, invvar, 8, weight, bias)


# ---- shapes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "normalized_shape"),
    [
        ((2, 3, 4), 4),
        ((2, 3, 4), (3, 4)),
        ((2, 3, 4), (2, 3, 4)),
        ((5,), 5),
        ((1, 1), (1,)),
        ((2, 3), np.int64(3)),
        ((2, 3), [3]),
    ],
)
def test_normalized_shape_is_the_trailing_dimensions(shape, normalized_shape):
    x = draw(*shape)
    results = layer_norm_forward(x, normalized_shape)
    trailing = np.atleast_1d(normalized_shape).tolist()
    assert results[1].shape == results[2].shape == shape[: len(shape) - len(trailing)]
    assert_forward(results, x, tuple(trailing))


def test_parameter_gradients_have_the_normalized_shape():
    x, weight, bias = draw(2, 3, 4), draw(3, 4), draw(3, 4)
    _, mean, invvar = layer_norm_forward(x, (3, 4), weight, bias)
    _, grad_weight, grad_bias = layer_norm_backward(draw(2, 3, 4), x, mean, invvar, (3, 4), weight, bias)
    assert grad_weight.shape == grad_bias.shape == (3, 4)


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_no_rows_give_empty_results_and_zero_parameter_gradients(kind):
    x, weight, bias = kind(np.empty((0, 3, 4), np.float32)), kind(draw(4)), kind(draw(4))
    output, mean, invvar = layer_norm_forward(x, 4, weight, bias)
    assert (tuple(output.shape), tuple(mean.shape), tuple(invvar.shape)) == ((0, 3, 4), (0, 3), (0, 3))
    grad_input, grad_weight, grad_bias = layer_norm_backward(x, x, mean, invvar, 4, weight, bias)
    assert tuple(grad_input.shape) == (0, 3, 4)
    assert grad_weight.tolist() == grad_bias.tolist() == [0, 0, 0, 0]


def test_absent_parameters_have_no_gradient():
    x, grad = draw(3, 8), draw(3, 8)
    for weight in (None, draw(8)):
        for bias in (None, draw(8)):
            _, mean, invvar = layer_norm_forward(x, 8, weight, bias)
            _, grad_weight, grad_bias = layer_norm_backward(grad, x, mean, invvar, 8, weight, bias)
            assert (grad_weight is None, grad_bias is None) == (weight is None, bias is None)


def test_memory_efficient_without_parameters_takes_the_output_as_the_normalised_value():
    x, grad = draw(3, 8), draw(3, 8)
    output, mean, invvar = layer_norm_forward(x, 8)
    from_output = layer_norm_backward(grad, output, None, invvar, 8, memory_efficient=True)[0]
    np.testing.assert_allclose(from_output, layer_norm_backward(grad, x, mean, invvar, 8)[0], atol=1e-6)


@pytest.mark.parametrize("mode", [True, "exact"])
@pytest.mark.parametrize(("input_dtype", "dtype"), [("float32", "bfloat16"), ("float16", "float32")])
def test_recomputing_grad_input_has_the_input_s_dtype_where_that_is_named(input_dtype, dtype, mode):
    x, weight, grad = draw(3, 8).astype(input_dtype), draw(8).astype(DTYPES[dtype]), draw(3, 8).astype(DTYPES[dtype])
    output, invvar = rms_norm_forward(x, 8, weight)
    rest = grad, output, invvar, 8, weight, 1e-5, mode, keep_columns(x, None, invvar, 8, weight)
    named, *others = (rms_norm_backward(*rest, input_dtype=how)[0] for how in (input_dtype, x.dtype, None))
    assert [array.dtype for array in (named, *others)] == [x.dtype, x.dtype, output.dtype]
    np.testing.assert_array_equal(named, others[0])
    tensors = [torch.from_numpy(one.astype(np.float32)).to(getattr(torch, dtype)) for one in (grad, output)]
    parameters = torch.from_numpy(weight.astype(np.float32)).to(getattr(torch, dtype))
    given = *tensors, torch.from_numpy(invvar), 8, parameters, 1e-5, True
    assert rms_norm_backward(*given, input_dtype=getattr(torch, input_dtype))[0].dtype == getattr(torch, input_dtype)


# ---- special values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("step", [step.name for step in checks.LADDERS["forward"]])
def test_nan_and_inf_stay_in_their_row(step, value):
    x = draw(3, 40)
    x[1, 7] = value
    output, mean, invvar = layer_norm_forward(x, 40, step=step)
    assert np.isnan(output[1]).all()
    assert np.isnan(invvar[1])
    assert not np.isfinite(mean[1])
    clean = np.delete(x, 1, axis=0)
    assert_forward([np.delete(a, 1, axis=0) for a in (output, mean, invvar)], clean, 40, step=step)
    wanted = torch.nn.functional.rms_norm(torch.from_numpy(x), (40,), eps=1e-5).numpy()
    got = rms_norm_forward(x, 40, step=step)[0]
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))


@pytest.mark.parametrize("step", [step.name for step in checks.LADDERS["backward"]])
def test_nan_reaches_the_parameter_gradients_and_no_other_row(step):
    x, grad, weight, bias = draw(20, 8), draw(20, 8), draw(8), draw(8)
    x[3, 2] = np.nan
    grad[5, 4] = np.inf
    _, mean, invvar = layer_norm_forward(x, 8, weight, bias)
    grad_input, grad_weight, grad_bias = layer_norm_backward(grad, x, mean, invvar, 8, weight, bias, step=step)
    tensors = [torch.from_numpy(a).requires_grad_() for a in (x, weight, bias)]
    torch.nn.functional.layer_norm(tensors[0], (8,), *tensors[1:]).backward(torch.from_numpy(grad))
    for got, tensor in zip((grad_input, grad_weight, grad_bias), tensors, strict=True):
        np.testing.assert_array_equal(np.isfinite(got), np.isfinite(tensor.grad.numpy()))
        if got is not grad_input:  # within a row that is lost, NaN and infinity may lie elsewhere than in torch
            np.testing.assert_array_equal(np.isnan(got), np.isnan(tensor.grad.numpy()))


def test_a_negative_eps_gives_nan_where_variance_plus_eps_is_negative():
    x = np.stack([0.1 * draw(16), 10 * draw(16)])
    output, _, invvar = layer_norm_forward(x, 16, eps=-0.5)
    assert np.isnan(output[0]).all()
    assert np.isnan(invvar[0])
    assert_forward([output[1:], layer_norm_forward(x, 16, eps=-0.5)[1][1:], invvar[1:]], x[1:], 16, eps=-0.5)


@pytest.mark.parametrize(("eps", "invvar"), [(1e300, 0), (10**400, 0), (np.inf, 0), (np.nan, np.nan), (-1e300, np.nan)])
def test_an_eps_that_float32_does_not_hold_is_infinite_there(eps, invvar):
    np.testing.assert_array_equal(layer_norm_forward(draw(2, 8), 8, eps=eps)[2], np.full(2, invvar, np.float32))


def test_float16_overflow_becomes_infinity():
    x = np.array([[-1, 1, -1, 1]], np.float16)
    output = layer_norm_forward(x, 4, np.full(4, 6e4, np.float16), np.full(4, 6e4, np.float16))[0]
    assert np.isposinf(output[0, 1::2]).all()
    assert (abs(output[0, ::2]) < 64).all()


# ---- errors -----------------------------------------------------------------------------------------------------------

X, W, STAT = np.zeros((2, 3, 4), np.float32), np.zeros(4, np.float32), np.zeros((2, 3), np.float32)


def raises(kind, text):
    return pytest.raises(kind, match=re.escape(text))


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ((X, 5), ValueError, "Given normalized_shape=[5], expected x with shape [*, 5], but got x of shape [2, 3, 4]"),
        ((X, (2, 4)), ValueError, "Given normalized_shape=[2, 4], expected x with shape [*, 2, 4], but got x of shape [2, 3, 4]"),
        ((W, (3, 4)), ValueError, "expected x with shape [*, 3, 4], but got x of shape [4]"),
        ((X, ()), ValueError, "Expected normalized_shape to be at least 1-dimensional, got normalized_shape=()"),
        ((np.zeros((2, 0), np.float32), 0), ValueError, "every dimension of normalized_shape must be at least 1, got normalized_shape=(0,)"),
        ((X, -4), ValueError, "every dimension of normalized_shape must be at least 1, got normalized_shape=(-4,)"),
        ((X, 4.0), TypeError, "normalized_shape must be an int or a tuple of ints, got 4.0"),
        ((X, "4"), TypeError, "normalized_shape must be an int or a tuple of ints, got '4'"),
        ((X, 4, np.zeros(3, np.float32)), ValueError, "Expected weight to be of shape [4] (normalized_shape), but got [3]"),
        ((X, 4, W, np.zeros((1, 4), np.float32)), ValueError, "Expected bias to be of shape [4] (normalized_shape), but got [1, 4]"),
        ((X.astype(np.int32), 4), TypeError, "x must be one of float16, bfloat16, float32, float64, but got int32"),
        ((X.astype(np.complex64), 4), TypeError, "x must be one of float16, bfloat16, float32, float64, but got complex64"),
        ((X, 4, W.astype(int)), TypeError, "weight must be one of float16, bfloat16, float32, float64, but got int64"),
        ((X, 4, W.astype(np.float64)), TypeError, "x is float32 and weight is float64: they must have one dtype, or mix float32 with float16"),
        ((X.astype(ml_dtypes.bfloat16), 4, W.astype(np.float16)), TypeError, "x is bfloat16 and weight is float16"),
        ((X, 4, W, W.astype(np.float16)), TypeError, "Expected bias to be float32 (as weight), but got float16"),
        ((X.tolist(), 4), TypeError, "x must be a NumPy array, a torch tensor or an array with __cuda_array_interface__, got builtins.list"),
        ((X, 4, W.tolist()), TypeError, "weight must be a NumPy array, a torch tensor or an array with __cuda_array_interface__, got builtins.list"),
        ((None, 4), TypeError, "x must be a NumPy array, a torch tensor or an array with __cuda_array_interface__, got builtins.NoneType"),
        ((X, 4, None, None, "small"), TypeError, "eps must be a real number, got 'small'"),
        ((torch.empty(2, 4, device="meta"), 4), ValueError, "x is on meta; normlab has kernels for 'cpu' and 'cuda' devices"),
        ((X, 4, torch.empty(4, device="meta")), ValueError, "all arrays must be on one device, but x is on cpu and weight is on meta"),
    ],
)  # fmt: skip
def test_forward_names_what_was_given_and_what_is_needed(arguments, kind, text):
    with raises(kind, text):
        layer_norm_forward(*arguments)


def test_an_unknown_step_lists_the_known_ones():
    with raises(
        ValueError, "unknown step 'fast' of the forward ladder; known: thread_per_row, block_tree, warp_shuffle, apex"
    ):
        layer_norm_forward(X, 4, step="fast")
    with raises(ValueError, "unknown step 'warp_shuffle' of the backward ladder; known: global_atomics, apex"):
        layer_norm_backward(X, X, STAT, STAT, 4, step="warp_shuffle")


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        ({"grad_output": X[:1]}, ValueError, "Expected grad_output to be of shape [2, 3, 4] (as saved), but got [1, 3, 4]"),
        ({"grad_output": X.astype(np.float16)}, TypeError, "Expected grad_output to be float32 (the output's dtype), but got float16"),
        ({"grad_output": None}, TypeError, "grad_output must be a NumPy array, a torch tensor or an array"),
        ({"mean": STAT.T}, ValueError, "Expected mean to be of shape [2, 3] (the leading dimensions of saved), but got [3, 2]"),
        ({"invvar": STAT[..., None]}, ValueError, "Expected invvar to be of shape [2, 3] (the leading dimensions of saved), but got [2, 3, 1]"),
        ({"invvar": STAT.astype(np.float64)}, TypeError, "Expected invvar to be float32 (statistics are kept in accumulator precision), but got float64"),
        ({"mean": STAT.T, "memory_efficient": True}, ValueError, "Expected mean to be of shape [2, 3]"),
        ({"mean": "hello", "memory_efficient": True}, TypeError, "mean must be a NumPy array, a torch tensor or an array with"),
        ({"mean": None}, ValueError, "mean is needed when saved is the input (memory_efficient=False), got None"),
        ({"saved": X.astype(np.float16), "grad_output": X, "memory_efficient": True}, TypeError, "Expected saved to be float32 (with memory_efficient it is the output, as the parameters), but got float16"),
        ({"input_dtype": "float16"}, TypeError, "Expected input_dtype to be float32 (as saved, which is the input), but got float16"),
        ({"input_dtype": torch.float64, "memory_efficient": True}, TypeError, "input_dtype is float64 and saved is float32: they must be one dtype, or mix float32 with float16, float32 with bfloat16, float16 with float32, bfloat16 with float32 outputs"),
        ({"normalized_shape": 3}, ValueError, "Given normalized_shape=[3], expected saved with shape [*, 3], but got saved of shape [2, 3, 4]"),
        ({"weight": W[:3]}, ValueError, "Expected weight to be of shape [4] (normalized_shape), but got [3]"),
    ],
)  # fmt: skip
def test_backward_names_what_was_given_and_what_is_needed(change, kind, text):
    arguments = {"grad_output": X, "saved": X, "mean": STAT, "invvar": STAT, "normalized_shape": 4, "weight": W}
    with raises(kind, text):
        layer_norm_backward(**arguments | change)


@pytest.mark.skipif(gpu_available(), reason="with a GPU nothing is simulated")
def test_a_long_simulation_is_announced(monkeypatch):
    monkeypatch.setattr(checks, "PATIENCE", 1e-4)
    for step, faster in ((BEST["forward"], ""), ("thread_per_row", "step='block_tree' takes about 0 s, ")):
        text = f"about 0 s for step '{step}' on 2 x 512 elements; {faster}fewer rows"
        with pytest.warns(UserWarning, match=text) as found:
            layer_norm_forward(draw(2, 512), 512, step=step)
        assert found[0].filename == __file__, "it names the line of the caller"


# ---- keyword-only, after one release -----------------------------------------------------------------------------------


def test_what_was_positional_still_is_and_says_what_to_write():
    x = np.float32([[1, 2, 3, 6]])
    want = layer_norm_forward(x, 4, eps=0.5)
    with pytest.warns(
        DeprecationWarning, match=r"layer_norm_forward\(\) will take eps by keyword only: write eps=\.\.\."
    ):
        got = layer_norm_forward(x, 4, None, None, 0.5)
    np.testing.assert_array_equal(got[0], want[0])
    _, mean, invvar = want
    with pytest.warns(DeprecationWarning, match="eps, memory_efficient by keyword only: write eps="):
        layer_norm_backward(x, x, mean, invvar, 4, None, None, 0.5, False)


def test_what_is_too_much_or_given_twice_is_an_error():
    x = np.float32([[1, 2, 3, 6]])
    with pytest.raises(TypeError, match="takes from 2 to 4 positional arguments but 6 were given"):
        layer_norm_forward(x, 4, None, None, 0.5, "apex")
    with pytest.raises(TypeError, match=r"layer_norm_forward\(\) got multiple values for argument 'eps'"):
        layer_norm_forward(x, 4, None, None, 0.5, eps=0.5)
