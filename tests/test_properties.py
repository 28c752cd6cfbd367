"""What norms have in common, whatever the data: invariances, orthogonality, independence of rows and of schedules."""

import itertools
import sys
from dataclasses import replace

import numpy as np
import pytest
from draws import Case, cases
from examine import (
    arithmetic,
    as_truth,
    backward,
    backward_bound,
    examine_backward,
    examine_forward,
    forward,
    forward_bound,
    record,
    statistics,
    with_plan,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st

from normlab import layer_norm_backward, layer_norm_forward, oracle
from normlab.engine import gpu_available, use_gpu, using
from normlab.host.checks import step_of
from normlab.kernels import LADDERS, Chains

FORWARD = pytest.mark.parametrize("step", LADDERS["forward"], ids=lambda step: step.name)
BACKWARD = pytest.mark.parametrize("step", LADDERS["backward"], ids=lambda step: step.name)
APEX, APEX_BACKWARD = step_of("forward", "apex"), step_of("backward", "apex")
FLOAT32 = cases(widths=(2, 33, 129), dtypes=[("float32", "float32")])
FEW = settings(max_examples=6)


def bits(array):
    """What is equal only where every bit is."""
    return None if array is None else array.view(np.uint8).tobytes()


def assert_same_output_within_both_bounds(one: Case, other: Case, step):
    """Outputs that are equal in exact arithmetic differ by no more than both bounds together."""
    (output, *_), plan = with_plan(forward, one, step)
    how = arithmetic(one, plan.rows, statistics=step.statistics)
    bound = sum(forward_bound(case, how).output for case in (one, other))
    oracle.assert_within(output, forward(other, step)[0].astype(np.float64), bound, "output")


def with_few_digits(case: Case) -> Case:
    """The case with its input rounded so that sums and products with small integers are exact."""
    return replace(case, x=np.round(case.x * 8).clip(-1000, 1000).astype(np.float32))


@FORWARD
@FEW
@given(case=FLOAT32, shift=st.integers(-1000, 1000))
def test_layer_norm_does_not_see_a_shift_of_a_row(step, case, shift):
    case = with_few_digits(replace(case, rms=False))
    assert_same_output_within_both_bounds(case, replace(case, x=case.x + np.float32(shift)), step)


@FORWARD
@FEW
@given(case=FLOAT32, scale=st.integers(2, 1000))
def test_the_output_does_not_see_a_scale_when_eps_is_scaled_by_its_square(step, case, scale):
    case = with_few_digits(case)
    scaled = replace(case, x=case.x * np.float32(scale), eps=case.eps * scale**2)
    assert_same_output_within_both_bounds(case, scaled, step)


@FORWARD
@FEW
@given(case=FLOAT32, exponent=st.integers(-6, 6))
def test_scaling_by_a_power_of_two_changes_no_bit_of_the_output(step, case, exponent):
    scaled = replace(case, x=case.x * np.float32(2.0**exponent), eps=float(np.float32(case.eps)) * 4.0**exponent)
    assert bits(forward(case, step)[0]) == bits(forward(scaled, step)[0])


@FORWARD
@FEW
@given(case=cases(widths=(2, 33, 129), rows=(5,)), seed=st.integers(0, 99))
def test_permuting_rows_permutes_the_forward_s_results_bit_for_bit(step, case, seed):
    order = np.random.default_rng(seed).permutation(5)
    for got, want in zip(forward(replace(case, x=case.x[order]), step), forward(case, step), strict=True):
        assert bits(got) == bits(None if want is None else want[order])


@BACKWARD
@FEW
@given(case=cases(widths=(2, 33, 129), rows=(5,)), memory_efficient=st.booleans(), seed=st.integers(0, 99))
def test_permuting_rows_permutes_grad_input_bit_for_bit(step, case, memory_efficient, seed):
    rng, order = np.random.default_rng(seed), np.arange(len(case.x))
    # The threads of this step have other columns of a row that begins elsewhere in a vector of 16 bytes, in an array
    # whose rows follow one another: a copy where the case has another layout.
    row = case.n2 * min(case.x.itemsize, case.grad_output.itemsize)
    begins = order * row % 16 if step.name == "pipelined" else 0 * order
    for begin in np.unique(begins):
        order[begins == begin] = rng.permutation(order[begins == begin])
    output, mean, invvar = statistics(case)
    saved = output if memory_efficient else case.x
    permuted = replace(case, x=case.x[order], grad_output=case.grad_output[order])
    want = backward(case, step, saved, mean, invvar, memory_efficient)[0][order]
    mean = None if mean is None else mean[order]
    assert bits(backward(permuted, step, saved[order], mean, invvar[order], memory_efficient)[0]) == bits(want)


EQUAL_VALUES = Case(
    np.full((1, 33), 0.5408456, np.float32), None, None, np.arange(33, dtype=np.float32)[None], 1e-12, rms=False
)


@BACKWARD
@FEW
@given(case=FLOAT32)
@example(case=EQUAL_VALUES)
def test_grad_input_of_layer_norm_sums_to_0_and_is_orthogonal_to_the_normalised_value(step, case):
    """sum(dx) = 0, and sum(dx x̂) = invvar sum(g x̂) eps / (variance + eps): 0 but for eps."""
    case = replace(case, rms=False)
    _, mean, invvar = statistics(case)
    (grad_input, *_), plan = with_plan(backward, case, step, case.x, mean, invvar, False)
    grad_input, how = grad_input.astype(np.float64), arithmetic(case, plan.rows, plan.columns)
    bound = backward_bound(case, how, False, forward=arithmetic(case, Chains(1, 0))).grad_input
    oracle.assert_within(grad_input.sum(axis=1), np.zeros(len(grad_input)), bound.sum(axis=1), "sum(dx)")
    truth = oracle.layer_norm(case.x, case.n2, eps=case.eps)
    bound[np.isinf(bound)] = np.finfo(np.float64).max  # nothing is known of such a row, whatever x̂ is
    xhat, g = truth.output, case.grad_output * (1.0 if case.weight is None else case.weight.astype(np.float64))
    leftover = truth.invvar**3 * case.eps * (g * xhat).sum(axis=1)
    with np.errstate(over="ignore"):
        allowed = (abs(xhat) * bound).sum(axis=1) + 1e-13 * abs(grad_input * xhat).sum(axis=1)
    oracle.assert_within((grad_input * xhat).sum(axis=1), leftover, allowed, "sum(dx x̂)")


@settings(max_examples=25)
@given(case=cases(widths=(2, 33, 129), rows=(1,)))
def test_a_recomputed_normalised_value_equals_the_saved_one_within_the_law(case):
    """With one row and grad_output = 1, grad_weight is x̂ itself; the law holds where |gamma| > eps."""
    case = replace(case, grad_output=np.ones_like(case.grad_output), rms=False)
    if case.weight is None:
        case = replace(case, weight=np.ones(case.n2, case.grad_output.dtype), bias=None)
    output, mean, invvar = forward(case, APEX)
    from_input = layer_norm_backward(
        case.grad_output, case.x, mean, invvar, case.n2, case.weight, case.bias, eps=case.eps
    )[1]
    from_output = layer_norm_backward(
        case.grad_output, output, None, invvar, case.n2, case.weight, case.bias, eps=case.eps, memory_efficient=True
    )[1]
    xhat = from_input.astype(np.float64)
    gamma = case.weight.astype(np.float64)
    beta = np.zeros(case.n2) if case.bias is None else case.bias.astype(np.float64)
    storage, u = case.grad_output.dtype.name, oracle.unit_roundoff("float32")
    law = oracle.recompute_error(xhat[None], gamma, beta, case.eps, storage)[0]
    with np.errstate(all="ignore"):
        # Beside the law: y's own computation rounds three times in float32, x̂'s twice, and either is stored once.
        computed = 4 * u * (abs(beta) + 2 * abs(gamma * xhat)) / abs(gamma)
        stored = 2 * oracle.unit_roundoff(storage) * (abs(xhat) + law) + 2 * float(
            np.finfo(np.float16).smallest_subnormal
        )
    right = (abs(gamma) > np.float32(case.eps)) & np.isfinite(output[0].astype(np.float64))
    right &= abs(gamma) * abs(xhat) + abs(beta) > 1e-3  # a float16 output below this loses digits to subnormals
    bound = (1.01 * (law + computed) + stored)[right]
    record(
        "recompute law", oracle.assert_within(from_output.astype(np.float64)[right], xhat[right], bound, "recomputed x̂")
    )


@settings(max_examples=10)
@given(case=cases(widths=(2, 33, 129)))
def test_recompute_and_saved_input_gradients_differ_by_no_more_than_both_bounds(case):
    same = replace(case, x=case.x.astype(case.grad_output.dtype)) if case.x.dtype != case.grad_output.dtype else case
    (output, mean, invvar), plan = with_plan(forward, same, APEX)
    before, paths, bounds = arithmetic(same, plan.rows, statistics=APEX.statistics), [], []
    for path, saved in ((False, same.x), (True, output)):
        gradients, plan = with_plan(backward, same, APEX_BACKWARD, saved, mean, invvar, path)
        paths.append(gradients)
        bounds.append(backward_bound(same, arithmetic(same, plan.rows, plan.columns), path, forward=before))
    for saved_input, recomputed, *limits in zip(*paths, *bounds, strict=True):
        if saved_input is not None:
            oracle.assert_within(recomputed, as_truth(saved_input), sum(limits), "recomputed gradient")


@FORWARD
@settings(max_examples=4)
@given(case=cases(widths=(2, 33, 129)))
def test_no_schedule_changes_a_bit_of_the_forward(step, case):
    results = set()
    for schedule in ("forward", "reverse", 1, 2):
        with using("simulator", schedule):
            results.add(tuple(bits(array) for array in forward(case, step)))
    assert len(results) == 1


@settings(max_examples=4)
@given(case=cases(widths=(2, 33, 129)), memory_efficient=st.booleans())
def test_no_schedule_changes_a_bit_of_apex_s_backward(case, memory_efficient):
    output, mean, invvar = statistics(case)
    saved = output if memory_efficient else case.x
    results = set()
    for schedule in ("forward", "reverse", 1, 2):
        with using("simulator", schedule):
            gradients = backward(case, APEX_BACKWARD, saved, mean, invvar, memory_efficient)
            results.add(tuple(bits(array) for array in gradients))
    assert len(results) == 1


def test_blocks_stride_over_rows_beyond_the_grid_limit(monkeypatch):
    """With grids of two blocks in the simulator; with 70,000 rows, beyond apex's 65,535 blocks, on a GPU."""
    if not use_gpu():
        for steps in (LADDERS["forward"], LADDERS["backward"]):
            for step in steps:
                for way in step.ways:
                    module = sys.modules[getattr(way, "func", way).__module__]
                    for limit in ("GRID_LIMIT", "GRID_LIMIT_Y"):
                        if hasattr(module, limit):
                            monkeypatch.setattr(module, limit, 2)
    rng = np.random.default_rng(0)
    n1, n2 = 70_000 if use_gpu() else 5, 6
    x, grad = rng.normal(size=(2, n1, n2)).astype(np.float32)
    weight, bias = rng.normal(size=(2, n2)).astype(np.float32)
    case = Case(x, weight, bias, grad, 0.1, rms=False)
    for step in LADDERS["forward"]:
        examine_forward(case, step)
    for step in LADDERS["backward"]:
        for memory_efficient in (False, True):
            examine_backward(case, None, step, memory_efficient)


def adversarial_cases(rms):
    """Few columns, values of one sign, means above the spread: where roundings add up instead of cancelling."""
    n1 = 3
    for seed, (n2, mean) in enumerate(itertools.product([2, 3, 5, 8], [1.0, 30.0])):
        rng = np.random.default_rng(seed)
        x = (mean + rng.normal(size=(n1, n2))).astype(np.float32)
        weight, bias, grad = (1 + rng.random(shape).astype(np.float32) for shape in (n2, n2, (n1, n2)))
        yield Case(x, weight, None if rms else bias, grad, 1e-5, rms)


def tightest(examined) -> dict[str, float]:
    """The largest err / bound of every result over all cases."""
    ratios: dict[str, float] = {}
    for one in examined:
        for what, ratio in one.items():
            ratios[what] = max(ratio, ratios.get(what, 0.0))
    return ratios


@FORWARD
@pytest.mark.parametrize("rms", [False, True], ids=["layer", "rms"])
def test_forward_steps_reach_their_bounds_to_within_a_factor_100(step, rms):
    ratios = tightest(examine_forward(case, step) for case in adversarial_cases(rms))
    assert min(ratio for what, ratio in ratios.items() if not (rms and what == "mean")) > 0.01, ratios


@BACKWARD
@pytest.mark.parametrize("rms", [False, True], ids=["layer", "rms"])
@pytest.mark.parametrize("memory_efficient", [False, True], ids=["saved", "recompute"])
def test_backward_steps_reach_their_bounds_to_within_a_factor_100(step, memory_efficient, rms):
    ratios = tightest(examine_backward(case, None, step, memory_efficient) for case in adversarial_cases(rms))
    assert min(ratio for what, ratio in ratios.items() if not (rms and what == "grad_bias")) > 0.01, ratios


@pytest.mark.skipif(not gpu_available(), reason="needs a GPU with 40 GB of free memory")
@pytest.mark.parametrize("shape", [(2**21 + 3, 1024), (9, 2**28 + 7)], ids=["many rows", "long rows"])
def test_indices_beyond_2_to_the_31_are_right(shape):
    import torch

    n1, n2 = shape
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.empty(shape, device="cuda", dtype=torch.bfloat16).normal_(generator=generator)
    weight = torch.ones(n2, device="cuda", dtype=torch.bfloat16)
    for step in LADDERS["forward"]:
        if step.name == "thread_per_row" and n1 < 32:
            continue  # one thread would take minutes over a row of 2^28
        output, mean, invvar = layer_norm_forward(x, n2, weight, step=step.name)
        last = x[-1].double()
        want = (last - last.mean()) * (last.var(correction=0) + 1e-5).rsqrt()
        assert (output[-1].double() - want).abs().max() < 0.05, step.name
    for step in LADDERS["backward"]:
        grad_input, grad_weight, _ = layer_norm_backward(x, x, mean, invvar, n2, weight, step=step.name)
        # grad_output = x: x̂ is x up to mean and scale, so the projection takes all of it away
        assert grad_input[-1].abs().max() < 0.05, step.name
        column = x[:, -1].double()
        want = (column * (column - mean.double()) * invvar.double()).sum()
        assert abs(grad_weight[-1].double() - want) < 0.01 * want.abs() + 0.05, step.name
