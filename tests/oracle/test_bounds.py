"""Bounds hold for every kernel that rounds as assumed; they are tight; and broken kernels exceed them."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from draws import paired
from hypothesis import given, settings
from hypothesis import strategies as st
from inputs import ORDINARY, ROWS, WIDTHS, compare, distant, far_from_zero, hard_weights, normal, ratio, within
from numpy_kernels import NumpyKernels

import normlab
from normlab.oracle import (
    Arithmetic,
    layer_norm,
    layer_norm_backward_bound,
    layer_norm_bound,
    rms_norm,
    rms_norm_bound,
)
from normlab.oracle.floats import extended
from normlab.oracle.moments import grouped, two_pass

STORAGE = [
    ("float32", "float32", "float32"),
    ("float16", "float16", "float16"),
    ("bfloat16", "bfloat16", "bfloat16"),
    ("float64", "float64", "float64"),
    ("float32", "float16", "float16"),
    ("float32", "bfloat16", "bfloat16"),
    ("float16", "float32", "float32"),
    ("bfloat16", "float32", "float32"),
]
BEYOND_FLOAT32 = [1e39, 1e300, np.inf, -1e39, -1e300, -np.inf, np.nan]
THIRDS = (1 / 3, 2 / 3)
METHODS = {
    "welford": {"statistics": "welford"},
    "two_pass": {"statistics": "two_pass"},
    "grouped": {"statistics": "grouped", "cuts": THIRDS},
    "rms": {"rms": True},
}


@st.composite
def kernels(draw):
    method = draw(st.sampled_from(list(METHODS.values())))
    if method != METHODS["welford"]:
        # Groups of any sizes, and empty ones: first, last, in the middle.
        cuts = draw(st.lists(st.sampled_from([0, 0.03, 0.25, 0.5, 0.6, 0.99, 1]), max_size=9))
        method = {**method, "cuts": tuple(sorted(cuts)), "reciprocal": draw(st.booleans())}
    return NumpyKernels(
        *draw(st.sampled_from(STORAGE)),
        threads=draw(st.sampled_from([1, 2, 32, 128])),
        column_threads=draw(st.sampled_from([1, 4, 16])),
        fast_root=draw(st.booleans()),
        means=draw(st.booleans()),
        **method,
    )


@st.composite
def problems(draw, kernel):
    """Arguments of `compare`, poisoned with an infinity or a NaN at times."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n2 = draw(st.sampled_from(WIDTHS))
    n1 = draw(st.sampled_from([1, 3, 17] if n2 < 200 else [1, 3]))  # 17 wide rows take as long as all the rest
    eps = draw(st.sampled_from([1e-12, 1e-5, 0.5, -0.5, 0.0]) | st.sampled_from(BEYOND_FLOAT32))
    x = within(draw(st.sampled_from(ROWS))(rng, n1, n2), kernel.input)
    weight = {
        "none": None,
        "hard": hard_weights(rng, n2, eps),
        "drawn": rng.normal(size=n2),
    }[draw(st.sampled_from(["none", "hard", "drawn"]))]
    bias = draw(st.sampled_from([None, 1e-3, 1, 1e5]))
    grad_output = {
        "drawn": rng.normal(size=(n1, n2)),
        "same": np.full((n1, n2), 1.3),
        "subnormal": rng.normal(size=(n1, n2)) * 1e-40,
    }[draw(st.sampled_from(["drawn", "same", "subnormal"]))]
    grad_output = within(grad_output, kernel.output)
    for array in draw(st.sampled_from([(), (), (), (x,), (grad_output,), (x, grad_output)])):
        array[rng.integers(n1), rng.integers(n2)] = draw(st.sampled_from([np.inf, -np.inf, np.nan]))
    return (
        x,
        None if weight is None else within(weight, kernel.parameter),
        None if bias is None else within(bias * rng.normal(size=n2), kernel.parameter),
        grad_output,
        eps,
        draw(st.booleans()),
    )


@settings(max_examples=600, deadline=None)
@given(st.data())
def test_no_correct_kernel_exceeds_its_bounds(data):
    kernel = data.draw(kernels())
    problem = data.draw(problems(kernel))
    compare(kernel, *problem, own_statistics=data.draw(st.booleans()))


def reached(kernel, memory_efficient, *, n1=3, n2=769):
    """The largest error / bound of every quantity over ordinary but adverse inputs, without and with parameters."""
    best = {}
    for rows, (same_gradient, affine) in product(ORDINARY, [(False, False), (True, False), (False, True)]):
        rng = np.random.default_rng(0)
        x = within(rows(rng, n1, n2), kernel.input)
        weight = within(rng.uniform(1, 2, size=n2), kernel.parameter) if affine else None
        bias = within(rng.normal(size=n2) * 0.01, kernel.parameter) if affine else None
        dy = within(np.full((n1, n2), 1.3) if same_gradient else rng.normal(size=(n1, n2)), kernel.output)
        ratios = compare(kernel, x, weight, bias, dy, 1e-5, memory_efficient, own_statistics=False)
        best = {name: max(best.get(name, 0), value) for name, value in ratios.items()}
    return best


@pytest.mark.parametrize(
    ("kernel", "method", "memory_efficient"),
    paired(
        [*(("float32", threads) for threads in (1, 32, 128)), ("float64", 128), ("float16", 128), ("bfloat16", 128)],
        METHODS,
        [False, True],
    ),
)
def test_adverse_inputs_reach_every_bound_within_a_factor_of_100(kernel, method, memory_efficient, record_property):
    storage, threads = kernel
    kernel = NumpyKernels(storage, storage, storage, threads=threads, **METHODS[method])
    best = reached(kernel, memory_efficient)
    assert best.keys() >= {"output", "invvar", "grad_input", "grad_weight"}
    for name, value in best.items():
        record_property(name, value)
        assert 0.01 <= value <= 1, name


@pytest.mark.parametrize("memory_efficient", [False, True], ids=["saved_input", "saved_output"])
@pytest.mark.parametrize("layer", ["embeddings", "block0_output", "block5_output"])
def test_real_activations_stay_within_bounds_that_are_known_everywhere(layer, memory_efficient, record_property):
    with np.load(Path(normlab.__file__).parent / "data" / "minilm_layernorm.npz") as data:
        x, dy, weight, bias = (data[f"{layer}_{name}"] for name in ("input", "grad_output", "weight", "bias"))
        eps = float(data["eps"])
    kernel = NumpyKernels(threads=32, column_threads=16)
    arithmetic = kernel.arithmetic(*x.shape)
    bounds = layer_norm_bound(x, 384, weight, bias, eps, arithmetic)
    assert all(np.isfinite(bound).all() for bound in bounds)
    gradients = layer_norm_backward_bound(
        dy, x, 384, weight, bias, eps, arithmetic, memory_efficient=memory_efficient, invvar_error=bounds.invvar
    )
    assert all(np.isfinite(bound).all() for bound in gradients)
    for name, value in compare(kernel, x, weight, bias, dy, eps, memory_efficient, own_statistics=True).items():
        record_property(name, value)
        assert value > 1e-3, name


class BiasedCount(NumpyKernels):
    def variance_of(self, m2, count):
        return m2 / (count - 1)


class MeanOfSquaresMinusSquareOfMean(NumpyKernels):
    def welford(self, x):
        n = self.U(x.shape[1])
        mean = self.row_sum(x) / n
        return mean, self.row_sum(x * x) / n - mean * mean

    def within(self, x, counts, means):
        return self.group_sums(x * x) - self.U(counts) * means * means


class NoClamp(NumpyKernels):
    def clamp(self, weight, eps):
        return weight


class EpsOutsideTheRoot(NumpyKernels):
    def invvar(self, variance, eps):
        return 1 / (np.sqrt(variance) + self.U(eps))


class HalfAccumulator(NumpyKernels):
    def sum(self, values, threads):
        return super().sum(values.astype(np.float16), threads).astype(self.U)


class ForgottenTail(NumpyKernels):
    def sum(self, values, threads):
        return super().sum(values[:, : values.shape[1] // 32 * 32], threads)


class ForgottenCountInMerge(NumpyKernels):
    def chan(self, mean_a, m2_a, count_a, mean_b, m2_b, count_b):
        mean, _, count = super().chan(mean_a, m2_a, count_a, mean_b, m2_b, count_b)
        return mean, m2_a + m2_b + (mean_b - mean_a) ** 2, count


class SquaredBeforeWeighed(NumpyKernels):
    """Overflows where a thread is empty, and its mean of 0 far from the other's."""

    def chan(self, mean_a, m2_a, count_a, mean_b, m2_b, count_b):
        mean, _, count = super().chan(mean_a, m2_a, count_a, mean_b, m2_b, count_b)
        delta = mean_b - mean_a
        share = count_b / np.maximum(count, 1)
        return mean, m2_a + m2_b + delta * delta * count_a * share, count


class NothingBetweenGroups(NumpyKernels):
    def between(self, counts, delta):
        return self.U(0)


class ForgottenCountOfGroup(NumpyKernels):
    def between(self, counts, delta):
        return delta * delta


class GroupSquaredBeforeWeighed(NumpyKernels):
    """Overflows where a group is empty, and its mean of 0 far from the row's."""

    def between(self, counts, delta):
        return counts * (delta * delta)


class ClampedThoughSaved(NumpyKernels):
    """apex's: the clamped weight takes part where the input was saved, too."""

    def backward(self, grad_output, saved, mean, invvar, weight, bias, eps, memory_efficient):
        weight = self.clamp(weight, eps)
        return super().backward(grad_output, saved, mean, invvar, weight, bias, eps, memory_efficient)


@pytest.mark.parametrize(
    ("broken", "settings", "rows", "eps", "memory_efficient", "quantities"),
    [
        (BiasedCount, {}, normal, 1e-5, False, {"invvar", "output"}),
        (MeanOfSquaresMinusSquareOfMean, {}, far_from_zero, 1e-5, False, {"invvar", "output"}),
        (NoClamp, {}, normal, 1e-5, True, {"grad_input", "grad_weight"}),
        (EpsOutsideTheRoot, {}, normal, 0.5, False, {"invvar", "output"}),
        (HalfAccumulator, {"statistics": "two_pass"}, normal, 1e-5, False, {"mean", "invvar", "output", "grad_bias"}),
        (HalfAccumulator, {"rms": True}, normal, 1e-5, False, {"invvar", "output", "grad_input", "grad_weight"}),
        (ForgottenTail, {"statistics": "two_pass"}, normal, 1e-5, False, {"mean", "invvar", "grad_bias"}),
        (ForgottenCountInMerge, {"threads": 32}, normal, 1e-5, False, {"invvar", "output"}),
        (SquaredBeforeWeighed, {"threads": 256}, distant, 1e-5, False, {"invvar", "output"}),
        (NothingBetweenGroups, METHODS["grouped"], normal, 1e-5, False, {"invvar", "output"}),
        (ForgottenCountOfGroup, METHODS["grouped"], normal, 1e-5, False, {"invvar", "output"}),
        (MeanOfSquaresMinusSquareOfMean, METHODS["grouped"], far_from_zero, 1e-5, False, {"invvar", "output"}),
        (GroupSquaredBeforeWeighed, {**METHODS["grouped"], "cuts": (1,)}, distant, 1e-5, False, {"invvar", "output"}),
        (ClampedThoughSaved, {}, normal, 0.5, False, {"grad_input"}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
def test_a_broken_kernel_exceeds_its_bounds(broken, settings, rows, eps, memory_efficient, quantities):
    rng = np.random.default_rng(0)
    n1, n2 = 33, 129
    problem = (
        within(rows(rng, n1, n2), "float32"),
        within(rng.choice([0, 1e-7, -1e-3, 0.25, 1.0], n2), "float32"),
        within(rng.normal(size=n2), "float32"),
        within(rng.normal(size=(n1, n2)), "float32"),
        eps,
        memory_efficient,
    )
    compare(NumpyKernels(**settings), *problem, own_statistics=False)
    with np.errstate(all="ignore"):
        ratios = compare(broken(**settings), *problem, own_statistics=False, assess=ratio)
    assert quantities <= {name for name, value in ratios.items() if value > 1}


class Neighbours(NumpyKernels):
    """Merges neighbouring threads, as a rotation does, so that the row's tail ends up as a small group of its own."""

    def sides(self, partial):
        return partial[:, ::2], partial[:, 1::2]


class NeighboursSwapped(NumpyKernels):
    """The same groups, the one that counts fewer values on the left."""

    def sides(self, partial):
        return partial[:, 1::2], partial[:, ::2]


@pytest.mark.parametrize("threads", [1, 32])
@pytest.mark.parametrize("mean", [1e1, 1e3])
def test_wrong_means_of_groups_cost_the_variance_more_than_a_wrong_mean_of_all_does(mean, threads, record_property):
    """Two groups of equal values, whose sums round the same way again and again, each its own way."""
    n1, n2 = 500, 1024
    values = mean + np.random.default_rng(0).uniform(-1, 1, size=(n1, 2))
    x = within(np.repeat(values, n2 // 2, axis=1), "float32")
    kernel = NumpyKernels(statistics="grouped", threads=threads, cuts=(0.5,))
    got = kernel.grouped(x)[1]
    exact = extended(x)
    variance = exact.var(axis=1, keepdims=True)
    by_groups, by_row = (
        ratio(got, variance, bound(exact, variance, kernel.arithmetic(n1, n2))[1], "variance")
        for bound in (grouped, two_pass)
    )
    record_property("grouped", by_groups)
    assert 0.1 <= by_groups <= 1
    assert by_row > 5


def test_the_mean_of_a_row_with_an_infinity_is_known_only_where_its_finite_values_cannot_overflow():
    """Two threads: inf + 1 and -3e38 - 3e38, which is NaN together."""
    for statistics in ("two_pass", "grouped"):
        kernel = NumpyKernels(statistics=statistics, threads=2)
        for value, known in ((-3e38, False), (-1e37, True)):
            x = np.float32([[np.inf, value, 1, value]])
            assert np.isinf(kernel.forward(x, None, None, 1e-5).mean[0]) == known
            bound = layer_norm_bound(x, 4, None, None, 1e-5, kernel.arithmetic(1, 4)).mean
            assert np.isnan(bound[0]) if known else np.isinf(bound[0])


def test_an_infinite_parameter_leaves_unknown_what_may_have_overflowed_before():
    """x̂ times the weight overflows, then infinity - infinity is NaN; or the variance does, then 0 times infinity."""
    kernel = NumpyKernels()
    for x, weight, bias in (([1, -1, 0, 2], 3e38, -np.inf), ([2e38, -2e38, 1e38, 2e38], np.inf, 0)):
        x, weight, bias = np.float32([x]), np.full(4, weight, np.float32), np.full(4, bias, np.float32)
        got = kernel.forward(x, weight, bias, 1e-5).output
        assert np.isnan(got[0, 3])
        assert np.isinf(layer_norm(x, 4, weight, bias).output[0, 3])
        compare(kernel, x, weight, bias, np.ones_like(x), 1e-5, False, own_statistics=True)


def mean_ratio(kernel, x):
    """The mean's largest error / bound."""
    n1, n2 = x.shape
    bound = layer_norm_bound(x, n2, None, None, 1e-5, kernel.arithmetic(n1, n2)).mean
    return ratio(kernel.forward(x, None, None, 1e-5).mean, layer_norm(x, n2).mean, bound, "mean")


@pytest.mark.parametrize(("n2", "threads", "reached"), [(33, 64, 1.5), (129, 256, 5), (513, 1024, 15)])
def test_a_mean_merged_with_fewer_values_on_the_left_is_off_by_up_to_the_ratio_of_counts_times_its_bound(
    n2, threads, reached, record_property
):
    """One large value merged with n2 - 1 small ones, last of all, on the wrong side: ratios of 2.8, 7.0 and 22.9."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1000, n2))
    x[:, -1] *= 1e6
    x = within(x, "float32")
    assert mean_ratio(Neighbours(threads=threads), x) <= 1
    swapped = mean_ratio(NeighboursSwapped(threads=threads), x)
    record_property("swapped", swapped)
    assert reached <= swapped <= n2 - 1


@pytest.mark.parametrize("rows", ORDINARY)
def test_either_side_may_be_left_where_counts_are_equal(rows):
    x = within(rows(np.random.default_rng(0), 33, 1024), "float32")
    assert mean_ratio(NeighboursSwapped(threads=128), x) <= 1


@pytest.mark.parametrize("eps", [1e39, 1e300, np.inf])
@pytest.mark.parametrize("rms", [False, True])
def test_an_eps_beyond_the_accumulator_leaves_the_bias_within_a_bound_that_is_known(eps, rms):
    rng = np.random.default_rng(0)
    kernel = NumpyKernels(rms=rms)
    x, (weight, bias) = within(normal(rng, 3, 5), "float32"), within(rng.normal(size=(2, 5)), "float32")
    got = kernel.forward(x, weight, None if rms else bias, eps)
    np.testing.assert_array_equal(got.output, np.broadcast_to(0 if rms else bias, (3, 5)))
    assert (got.invvar == 0).all()
    if rms:
        want, bound = rms_norm(x, 5, weight, eps), rms_norm_bound(x, 5, weight, eps, kernel.arithmetic(3, 5))
    else:
        want = layer_norm(x, 5, weight, bias, eps)
        bound = layer_norm_bound(x, 5, weight, bias, eps, kernel.arithmetic(3, 5))
    assert bound.invvar == pytest.approx(want.invvar, rel=1e-9)
    assert np.isfinite(bound.output).all()
    compare(kernel, x, weight, bias, x, eps, False, own_statistics=True)


def test_where_an_infinite_eps_clamps_every_weight_grad_weight_is_known_and_grad_input_is_not():
    rng = np.random.default_rng(0)
    x, weight = within(normal(rng, 3, 5), "float32"), np.ones(5, np.float32)
    problem = (x, weight, weight, x, 1e39, True)
    assert compare(NumpyKernels(), *problem, own_statistics=True)["grad_weight"] == pytest.approx(1, rel=0.1)
    bound = layer_norm_backward_bound(
        x, x, 5, weight, weight, 1e39, NumpyKernels().arithmetic(3, 5), memory_efficient=True
    )
    assert np.isinf(bound.grad_input).all()
    assert np.isfinite(bound.grad_weight).all()


def test_constant_rows_have_a_finite_bound_with_eps_and_none_without():
    arithmetic = NumpyKernels().arithmetic(1, 8)
    x = np.full((1, 8), np.float32(1.1))
    assert np.isfinite(layer_norm_bound(x, 8, None, None, 1e-5, arithmetic).output).all()
    assert np.isinf(layer_norm_bound(x, 8, None, None, 0.0, arithmetic).output).all()


def test_more_additions_in_a_row_widen_the_bound_and_a_tree_narrows_it():
    x = np.random.default_rng(0).normal(size=(1, 769))
    bounds = [
        rms_norm_bound(x, 769, None, 1e-5, NumpyKernels(threads=threads).arithmetic(1, 769)).invvar.item()
        for threads in (1, 32, 128)
    ]
    assert bounds[0] > 10 * bounds[1] > 10 * bounds[2]


def test_a_bound_on_what_was_handed_in_must_have_its_shape():
    x = np.ones((2, 3, 4))
    with pytest.raises(ValueError, match=r"mean_error has shape \(6,\), but x has leading dimensions \(2, 3\)"):
        layer_norm_backward_bound(x, x, 4, None, None, 1e-5, NumpyKernels().arithmetic(6, 4), mean_error=np.ones(6))
    with pytest.raises(ValueError, match=r"output_error has shape \(4,\), but x has shape \(2, 3, 4\)"):
        layer_norm_backward_bound(
            x,
            x,
            4,
            None,
            None,
            1e-5,
            NumpyKernels().arithmetic(6, 4),
            memory_efficient=True,
            output_error=np.ones(4),
        )


def test_nothing_is_known_of_an_infinite_gradient_times_an_invvar_that_may_be_held_as_0():
    """eps = 1e39 is infinite in float32: infinity times invvar is infinite in truth, and NaN in the kernel."""
    x, weight = np.float32([[1, 2, 4]]), np.float32([1, 1, 1])
    grad_output = np.float32([[1, np.inf, 2]])
    arithmetic = Arithmetic(row_terms=3, row_merges=0, column_terms=1, column_merges=0)
    invvar_error = layer_norm_bound(x, 3, weight, None, 1e39, arithmetic).invvar
    bound = layer_norm_backward_bound(grad_output, x, 3, weight, None, 1e39, arithmetic, invvar_error=invvar_error)
    assert np.isinf(bound.grad_input).all()
