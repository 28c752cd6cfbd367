"""CPU tensors: every mode's results are within the oracle's bounds, on the values that norms go wrong on."""

import weakref
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from draws import DTYPES, Case, cases, paired
from hypothesis import given, settings
from hypothesis import strategies as st
from nn.norms import MODES, at_risk, hold_to_bounds, tensor, through_torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from normlab import nn
from normlab.nn import blocks, vectorised
from normlab.nn.shapes import How, Saved
from normlab.studies.compare.activations import bundled


@settings(max_examples=150)
@given(case=cases(), memory_efficient=st.sampled_from(MODES))
def test_output_and_gradients_are_within_the_bounds(case, memory_efficient):
    hold_to_bounds(case, memory_efficient, *through_torch(case, memory_efficient))


@settings(max_examples=100)
@given(case=cases(), memory_efficient=st.sampled_from(MODES), elements=st.sampled_from([1, 40, 300]))
def test_in_blocks_of_few_rows_they_are_too(case, memory_efficient, elements):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK", elements)
        hold_to_bounds(case, memory_efficient, *through_torch(case, memory_efficient))


@pytest.mark.parametrize(("memory_efficient", "dtype", "mean"), paired(MODES, DTYPES, [0.0, 0.9, 1.1, 1e3, 1e6]))
def test_many_rows_far_from_0_are_within_the_bounds(memory_efficient, dtype, mean, monkeypatch):
    """More than two blocks of them; a mean of 1 is where ATen's LayerNorm stops being handed x as it is."""
    monkeypatch.setattr(blocks, "BLOCK", 40 * 256)
    generator = np.random.default_rng(0)
    x, dy = generator.standard_normal((2, 90, 256))
    case = Case(
        (x + mean).clip(-6e4, 6e4).astype(DTYPES[dtype]),
        generator.uniform(0.5, 1.5, 256).astype(DTYPES[dtype]),
        generator.standard_normal(256).astype(DTYPES[dtype]),
        dy.astype(DTYPES[dtype]),
        eps=1e-5,
        rms=False,
    )
    hold_to_bounds(case, memory_efficient, *through_torch(case, memory_efficient))


class Living(TorchDispatchMode):
    """Counts the bytes of the tensors that operations have made and that are still there; not of those given."""

    def __init__(self, *given):
        super().__init__()
        self.given = {one.untyped_storage().data_ptr() for one in given}
        self.bytes = self.peak = 0
        self.users: Counter = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Count the results' storages, each once."""
        result = func(*args, **(kwargs or {}))
        for one in tree_leaves(result):
            if isinstance(one, torch.Tensor):
                self.count(one, one.untyped_storage())
        return result

    def count(self, tensor, storage) -> None:
        where, size = storage.data_ptr(), storage.nbytes()
        if where in self.given:
            return
        self.bytes += size * (not self.users[where])
        self.users[where] += 1
        self.peak = max(self.peak, self.bytes)
        weakref.finalize(tensor, self.forget, where, size)

    def forget(self, where: int, size: int) -> None:
        self.users[where] -= 1
        self.bytes -= size * (not self.users[where])


@pytest.mark.parametrize(
    ("mean", "rms", "memory_efficient", "dtype"),
    paired([0.0, 5.0], [False, True], [False, True], [torch.float32, torch.bfloat16]),
)
def test_beside_the_results_there_is_room_for_less_than_2_activations(mean, rms, memory_efficient, dtype):
    torch.manual_seed(0)
    x, dy = (torch.randn(32 * 1024, 128) + mean).to(dtype), torch.randn(32 * 1024, 128).to(dtype)
    weight, bias = torch.rand(128).add(0.5).to(dtype), None if rms else torch.randn(128).to(dtype)
    activation = x.numel() * x.element_size()
    with torch.no_grad(), Living(x) as forward:
        output, mean_of_rows, invvar = vectorised.forward(x, (128,), weight, bias, 1e-5, rms)
    tensor, statistics = (output, None) if memory_efficient else (x, mean_of_rows)
    saved = Saved(tensor, invvar, weight, bias, mean=statistics)
    with torch.no_grad(), Living(dy, tensor) as backward:
        gradients = vectorised.backward(dy, saved, How(dtype, (128,), 1e-5, rms, memory_efficient))
    assert gradients[0].shape == x.shape
    for living in (forward, backward):  # one activation is the result itself
        assert living.peak < 3 * activation


@settings(max_examples=50)
@given(case=cases())
def test_what_is_kept_is_xhat_of_the_columns_at_risk(case):
    x, weight, bias = tensor(case.x), tensor(case.weight), tensor(case.bias)
    parameters = (case.n2,), weight, bias, case.eps
    output, mean, invvar = vectorised.forward(x, *parameters, case.rms)
    columns = vectorised.columns_at_risk(invvar, output, *parameters, (weight, bias))
    values = vectorised.keep(x, mean, invvar, *parameters, columns)
    assert columns.dtype == torch.int32
    np.testing.assert_array_equal(columns, at_risk(case))
    assert values.shape == (case.x.shape[0], len(columns))
    wide = x.to(invvar.dtype)
    xhat = (wide if mean is None else wide - mean) * invvar
    torch.testing.assert_close(values, xhat[:, columns].to(values.dtype), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("memory_efficient", MODES)
@pytest.mark.parametrize("n2", [1, 5])
def test_rows_of_equal_values_have_no_gradient_of_weight(n2, memory_efficient):
    """x̂ is 0, however large invvar is; torch's own backward gives 0.27 for the first of these (pytorch#188372)."""
    x = torch.full((3, n2), -13.086, dtype=torch.float16, requires_grad=True)
    weight = torch.ones(n2, requires_grad=True)
    nn.layer_norm(x, n2, weight, eps=1e-12, memory_efficient=memory_efficient).sum().backward()
    assert not weight.grad.any()


ARRAYS = ("input", "weight", "bias", "grad_output")


def layer(name: str, dtype: str) -> Case:
    """A bundled layer of real activations, rounded to a dtype."""
    (arrays,) = [source.arrays for source in bundled() if source.name == name]
    rows = {"input": slice(90), "grad_output": slice(90)}
    drawn = (arrays[key][rows.get(key, slice(None))].astype(DTYPES[dtype]) for key in ARRAYS)
    return Case(*drawn, eps=float(arrays["eps"]), rms=False)


def relative_error(got: np.ndarray, case: Case) -> float:
    """Of a grad_input, against float64 on the same rounded arrays."""
    arrays = (case.x, case.weight, case.bias, case.grad_output)
    wide = Case(*(array.astype(np.float64) for array in arrays), case.eps, rms=False)
    truth = through_torch(wide, False)[1][0]
    return float(np.linalg.norm(got.astype(np.float64) - truth) / np.linalg.norm(truth))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["embeddings", "block0_output", "block5_output"])
def test_exact_has_the_saved_input_s_error_on_real_activations(name, dtype):
    case = layer(name, dtype)
    output, gradients = through_torch(case, "exact")
    hold_to_bounds(case, "exact", output, gradients)
    assert relative_error(gradients[0], case) < 1.5 * relative_error(through_torch(case, False)[1][0], case)


def test_true_is_off_on_real_activations_with_weights_of_1e_minus_33():
    case = layer("block5_output", "float32")
    assert relative_error(through_torch(case, True)[1][0], case) > 1e-2


@pytest.mark.parametrize("memory_efficient", MODES)
@pytest.mark.parametrize("rms", [False, True])
def test_more_dimensions_and_strides_give_what_rows_and_columns_give(rms, memory_efficient):
    torch.manual_seed(0)
    weight = torch.randn(2, 3)
    weight[1, 1] = 0
    wide, dy = torch.randn(12, 20, 8, 3), torch.randn(4, 5, 2, 3)
    x = wide[::3, ::4, ::4]

    def gradients(x, weight, dy, shape):
        x, weight = x.detach().requires_grad_(), weight.clone().requires_grad_()
        norm = nn.rms_norm if rms else nn.layer_norm
        output = norm(x, shape, weight, memory_efficient=memory_efficient, eps=1e-5)
        output.backward(dy)
        assert output.is_contiguous()
        return output.detach(), x.grad, weight.grad

    got = gradients(x, weight, dy, (2, 3))
    want = gradients(x.reshape(20, 6), weight.reshape(6), dy.reshape(20, 6), 6)
    for one, other, shape in zip(got, want, (x.shape, x.shape, weight.shape), strict=True):
        assert one.shape == shape
        torch.testing.assert_close(one.flatten(), other.flatten(), rtol=0, atol=0)


@pytest.mark.parametrize("memory_efficient", [False, "exact"])
@pytest.mark.parametrize("norm", [nn.FusedLayerNorm, nn.FusedRMSNorm])
def test_zero_initialised_weights_learn(norm, memory_efficient):
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.float16):
        module = norm(8, eps=1e-12, memory_efficient=memory_efficient, dtype=dtype)
        torch.nn.init.zeros_(module.weight)
        x, dy = torch.randn(16, 8, dtype=dtype), torch.randn(16, 8, dtype=dtype)
        module(x).backward(dy)
        xhat = norm(8, eps=1e-12)(x.float()).detach()
        torch.testing.assert_close(module.weight.grad.float(), (dy.float() * xhat).sum(0), rtol=5e-3, atol=2e-2)
        assert module.weight.grad.abs().min() > 0


@pytest.mark.parametrize("memory_efficient", MODES)
def test_no_rows_give_gradients_of_zero(memory_efficient):
    for norm in (nn.FusedLayerNorm(3, memory_efficient=memory_efficient), nn.FusedRMSNorm(3, 1e-5, True, True)):
        x = torch.randn(0, 3, requires_grad=True)
        norm(x).sum().backward()
        assert x.grad.shape == (0, 3)
        assert not norm.weight.grad.any()


@pytest.mark.parametrize("mode", [False, True, "exact"])
@pytest.mark.parametrize("kind", [nn.FusedLayerNorm, nn.FusedRMSNorm])
def test_a_selective_checkpoint_may_keep_the_result_of_each_operation(kind, mode):
    norm, x = kind(8, memory_efficient=mode), torch.randn(4, 8, requires_grad=True)
    with torch.no_grad():
        norm.weight[1] = 0.5 if mode is True else 0
    want = norm(x)
    keeping = partial(create_selective_checkpoint_contexts, lambda *_, **__: CheckpointPolicy.MUST_SAVE)
    got = checkpoint(norm, x, use_reentrant=False, context_fn=keeping)
    assert torch.equal(got, want)
    for one, other in zip(*(torch.autograd.grad(y.square().sum(), [x, norm.weight]) for y in (got, want)), strict=True):
        torch.testing.assert_close(one, other)
