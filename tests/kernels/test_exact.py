"""The exact mode: the columns at risk are found, their x̂ is kept, and no gradient is worse for any gamma."""

from dataclasses import replace
from itertools import product

import ml_dtypes
import numpy as np
import pytest
from draws import DTYPES, Case
from examine import (
    arithmetic,
    backward,
    backward_bound,
    backward_truth,
    columns_at_risk,
    examine_survey,
    forward,
    hold,
    keep,
    spread_of,
    with_plan,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from normlab import engine, layer_norm_backward, oracle
from normlab.engine import use_gpu
from normlab.host.checks import step_of
from normlab.host.exact import keep_columns
from normlab.kernels import Device, Plan, Problem
from normlab.kernels.exact.chains import with_repairs
from normlab.kernels.exact.choose import launch_choice
from normlab.kernels.exact.risk import RATIO, limits
from normlab.kernels.exact.spread import LARGE, SMALL, launch_spread
from normlab.kernels.exact.survey import launch_survey
from normlab.studies.compare.activations import bundled

APEX, BEST = step_of("forward", "apex"), step_of("backward", "pipelined")
rng = np.random.default_rng(3)


def kept_columns(weight, bias, eps=1e-5, **options):
    """What `keep_columns` returns for rows of ones."""
    n2 = len(bias if weight is None else weight)
    x, ones = np.ones((2, n2), (bias if weight is None else weight).dtype), np.ones(2, np.float32)
    return keep_columns(x, ones, ones, n2, weight, bias, eps=eps, **options)


# ---- which columns ---------------------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(
    n2=st.sampled_from([1, 2, 31, 32, 33, 65, 1025, 2100]),
    share=st.sampled_from([0.0, 0.02, 0.5, 1.0]),
    dtype=st.sampled_from(["float16", "bfloat16", "float32"]),
    given_parameters=st.sampled_from([(True, True), (True, False), (False, True)]),
    seed=st.integers(0, 99),
)
def test_the_columns_are_those_of_the_definition_in_order(n2, share, dtype, given_parameters, seed):
    random = np.random.default_rng(seed)
    weight, bias = random.normal(size=(2, n2)).astype(DTYPES[dtype])
    weight[random.random(n2) < share] = random.choice([0.0, -0.0, 1e-6, 1e-7, np.nan])
    bias[random.random(n2) < share] *= 100
    weight, bias = (array if there else None for array, there in zip((weight, bias), given_parameters, strict=True))
    want = columns_at_risk(weight, bias, limits(np.float32(1e-5), dtype))
    kept = kept_columns(weight, bias)
    np.testing.assert_array_equal(kept.columns, want)
    assert kept.values.shape == (2, len(want))


@settings(max_examples=12)
@given(
    short=st.lists(st.sampled_from([1, 33, 100]), max_size=2),
    dtype=st.sampled_from(["float16", "bfloat16", "float32"]),
    given_parameters=st.sampled_from([(True, True), (True, False), (False, True)]),
    seed=st.integers(0, 99),
)
def test_a_survey_lists_the_columns_of_each_norm(short, dtype, given_parameters, seed):
    examine_survey(launch_survey, [*short, 1500], dtype, given_parameters, seed)  # one has more columns than threads


def test_the_borders_of_the_risk():
    below, above = np.nextafter(np.float32(1e-5), np.float32(0)), np.nextafter(np.float32(RATIO), np.float32(99))
    weight = np.array([1e-5, below, -below, -1e-5, 1, 1, 0, np.nan, np.inf], np.float32)
    bias = np.array([0, 0, 0, 0, RATIO, above, np.nan, 1, np.inf], np.float32)
    np.testing.assert_array_equal(kept_columns(weight, bias).columns, [1, 2, 5, 6])
    # a float16 output below 2^-14 has fewer digits, whatever eps is
    weight = np.array([2.0**-14, 2.0**-15], np.float16)
    for eps in (1e-12, 0.0, -1.0):
        np.testing.assert_array_equal(kept_columns(weight, None, eps).columns, [1])


def test_a_list_with_too_few_slots_has_the_first_and_counts_the_others():
    weight, counts, one = np.float32([0, 1, 0, 1, 0]), np.int64([9, 3, 6]), np.ones(1, np.float32)
    for slots, want in ((2, [0, 2]), (5, [0, 2, 4, -1, -1]), (0, [])):
        columns = np.full(slots, 99, np.int32)
        launch_choice(engine.launch, 5, weight, None, one, limits(np.float32(1e-5), "float32"), columns, counts)
        assert columns.tolist() == want
    assert counts.tolist() == [3, 3 + 1 + 3, 6 + 3]


def test_columns_that_are_known_are_kept_as_they_are():
    weight, columns = np.ones(5, np.float32), np.int32([4, 1, -1])
    kept = kept_columns(weight, None, columns=columns)
    assert kept.columns is columns
    assert kept.values.shape == (2, 3)
    with pytest.raises(TypeError, match="columns to be int32"):
        kept_columns(weight, None, columns=columns.astype(np.int64))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n1", [1, 2, 33, 700])
def test_the_spread_is_that_of_the_definition(n1, dtype):
    eps = dtype(1e-5)
    for scale, broken in product([0.0, 1e-6, 3e-4, 2e-3, 1e-2, 1.0], [None, np.nan, np.inf]):
        invvar = (1 / np.sqrt((scale * rng.random(n1)) ** 2 + float(eps))).astype(dtype)
        if broken is not None:
            invvar[n1 // 2] = broken
        got, want = np.full(1, np.nan, dtype), spread_of(invvar, float(eps))
        launch_spread(engine.launch, invvar, eps, got)
        if abs(want**2 - LARGE) > 1e-4:  # not at the border
            assert abs(float(got[0]) ** 2 - want**2) <= 40 * np.finfo(dtype).eps  # of 1 - eps invvar²
        assert got[0] ** 2 >= SMALL * 0.999


# ---- the gradients ---------------------------------------------------------------------------------------------------


def case_of(dtype: str, n1: int, n2: int, rms: bool = False, rng: np.random.Generator = rng) -> Case:
    """Every gamma that recomputing fears, beside ordinary ones; and biases large against them."""
    eps = 1e-5
    weight = rng.choice([0.0, -0.0, 1e-30, 1e-7, -1e-7, eps / 2, eps, 1.0, -1.0, 1e-2, 0.3, 300.0], size=n2)
    bias = rng.choice([0.0, 1e-3, 1.0, -30.0], size=n2)
    x, grad = rng.normal(size=(2, n1, n2))
    x, weight, bias, grad = (array.astype(DTYPES[dtype]) for array in (x, weight, bias, grad))
    return Case(x, weight, None if rms else bias, grad, eps, rms)


def normalised(case: Case, plan: Plan) -> oracle.Arithmetic:
    """How the forward's plan computes."""
    return arithmetic(case, plan.rows, statistics=APEX.statistics)


def repaired(case: Case, plan: Plan, capacity: int) -> oracle.Arithmetic:
    """How the backward's plan computes, with the exact mode's own kernels for so many kept columns around it."""
    return arithmetic(case, *with_repairs(plan.rows, plan.columns, len(case.x), capacity))


def test_more_columns_than_the_capacity_are_recomputed_and_the_others_stay_right():
    case = case_of("float32", 4, 96)
    (output, mean, invvar), before = with_plan(forward, case, APEX)
    everything = keep(case, mean, invvar)
    some = keep(case, mean, invvar, everything.columns[:10])
    np.testing.assert_array_equal(some.columns, everything.columns[:10])
    got, plan = with_plan(backward, case, BEST, output, None, invvar, "exact", some)
    bound = backward_bound(case, repaired(case, plan, 10), True, some, normalised(case, before))
    for what, *rest in zip(("dx", "dw", "db"), got, backward_truth(case), bound, strict=True):
        hold(f"exact, too little room: {what}", *rest)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("rms", [False, True], ids=["layer", "rms"])
def test_the_bound_is_that_of_the_saved_input_and_the_output_s_rounding_for_every_gamma(dtype, rms, seed):
    """|error| <= saved-input bound + what an x̂ with RATIO + 1 roundings of the output would do, on top.

    And with the accumulator's own on the way: of γ x̂ in the forward, of y - β, of 1 / γ and of their product.
    """
    case = case_of(dtype, 6, 160, rms, np.random.default_rng(seed))
    (_, mean, invvar), before = with_plan(forward, case, APEX)
    kept = keep(case, mean, invvar)
    plan = BEST.plan(Problem("backward", "rms" if rms else "layer", 6, 160, dtype), Device.named("h200"))
    how = repaired(case, plan, len(kept.columns)), normalised(case, before)
    exact, saved = (backward_bound(case, how[0], *rest, how[1]) for rest in ((True, kept), (False, None)))
    truth = oracle.rms_norm(case.x, case.n2) if rms else oracle.layer_norm(case.x, case.n2)
    xhat, invvar, dy = abs(truth.output), truth.invvar[:, None], abs(case.grad_output.astype(np.float64))
    gamma, beta = abs(case.weight.astype(np.float64)), 0 if rms else abs(case.bias.astype(np.float64))
    u = 1.05 * oracle.unit_roundoff(dtype)
    own = 1.05 * oracle.unit_roundoff("float32") * xhat
    xhat_off = u * (RATIO + 1 + xhat) + 4 * own  # and the subnormal outputs of float16: (2^-25 / 2^-14 is u)
    rounded = np.where(gamma * RATIO < beta, 0, beta) + gamma * (1 + xhat)
    shifted_off = u * rounded + 2 * gamma * own  # of y - β, and of γ times it
    sum2 = (dy * gamma * xhat).mean(1, keepdims=True)
    sum2_off = (dy * shifted_off).mean(1, keepdims=True)
    allowed = saved.grad_input + 1.05 * invvar * (xhat_off * (sum2 + sum2_off) + xhat * sum2_off)
    assert (exact.grad_input <= allowed).all()
    assert (exact.grad_weight <= saved.grad_weight + 1.05 * (dy * xhat_off).sum(0)).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_on_real_activations_exact_is_as_good_as_the_saved_input(dtype):
    """The layer on which apex's recompute is 2.5 % off in float32, and NaN in float16: all of its rows' columns."""
    data = next(one.arrays for one in bundled() if one.name == "block5_output")
    rows = slice(None) if use_gpu() else slice(0, 16)
    x, grad = data["input"][rows], data["grad_output"][rows]
    arrays = (array.astype(DTYPES[dtype]) for array in (x, data["weight"], data["bias"], grad))
    case = Case(*arrays, float(data["eps"]), rms=False)
    output, mean, invvar = forward(case, APEX)
    kept = keep(case, mean, invvar)
    assert len(kept.columns) == {"float16": 3, "bfloat16": 3, "float32": 3}[dtype]
    truth = backward_truth(case).grad_input
    errors = {
        path: np.linalg.norm(backward(case, BEST, saved, mean, invvar, path, kept)[0].astype(np.float64) - truth)
        / np.linalg.norm(truth)
        for path, saved in ((False, case.x), ("exact", output), (True, output))
    }
    assert errors["exact"] < 1.2 * errors[False]
    assert not errors[True] < 5 * errors[False] or dtype == "bfloat16"


def test_zero_weights_learn():
    case = replace(case_of("float32", 5, 64), weight=np.zeros(64, np.float32), bias=np.zeros(64, np.float32))
    (output, mean, invvar), before = with_plan(forward, case, APEX)
    kept = keep(case, mean, invvar)
    assert not output.any()
    assert len(kept.columns) == 64
    got, plan = with_plan(backward, case, BEST, output, None, invvar, "exact", kept)
    bound = backward_bound(case, repaired(case, plan, 64), True, kept, normalised(case, before))
    for what, *rest in zip(("dx", "dw", "db"), got, backward_truth(case), bound, strict=True):
        hold(f"exact, zero weights: {what}", *rest)
    assert np.abs(got[1]).min() > 0


# ---- errors ----------------------------------------------------------------------------------------------------------


def test_mistakes_are_named():
    x, ones, rows = np.ones((2, 8), np.float32), np.ones(8, np.float32), np.ones(2, np.float32)

    def backward(mode, kept=None):
        return layer_norm_backward(x, x, None, rows, 8, ones, ones, memory_efficient=mode, kept=kept)

    with pytest.raises(ValueError, match="memory_efficient must be True, False or 'exact', got 'exactly'"):
        backward("exactly")
    with pytest.raises(ValueError, match=r"memory_efficient='exact' needs kept, which normlab.keep_columns makes"):
        backward("exact")
    kept = kept_columns(np.zeros(8, np.float32), None)
    with pytest.raises(ValueError, match=r"Expected kept.values to be of shape \[2, 8\]"):
        backward("exact", kept._replace(values=kept.values[:1]))
    with pytest.raises(TypeError, match=r"Expected kept.values to be float32"):
        backward("exact", kept._replace(values=kept.values.astype(ml_dtypes.bfloat16)))
    with pytest.raises(TypeError, match=r"Expected kept.columns to be int32"):
        backward("exact", kept._replace(columns=kept.columns.astype(np.int64)))
    assert layer_norm_backward(x, x, None, rows, 8, memory_efficient="exact")[0].shape == (2, 8)
