"""Parameters of 16 bits, narrow in the pipelined backward's shared memory: gammas of every size are inverted right."""

import devices
import ml_dtypes
import numpy as np
import pytest
from draws import Case
from examine import arithmetic, backward, backward_bound, examine_backward

from normlab.host.checks import step_of
from normlab.kernels import Device, Problem
from normlab.kernels.backward.pipelined.kind import kind_of
from normlab.kernels.backward.tables import RECOMPUTED_FLOAT16_WITH_BIAS, table_for
from normlab.kernels.problem import BackwardProblem

BFLOAT16 = ml_dtypes.bfloat16
PIPELINED = step_of("backward", "pipelined")
both_norms = pytest.mark.parametrize("rms", [False, True], ids=["layer", "rms"])


def problem_of(saved, weight, bias, rms=False, memory_efficient=True) -> BackwardProblem:
    """Return a backward's operands, as far as its kind depends on them."""
    others = dict.fromkeys(("mean", "invvar", "eps", "grad_weight", "grad_bias"))
    given = {"saved": saved, "grad_output": saved, "grad_input": saved, "weight": weight, "bias": bias}
    return BackwardProblem(**given, **others, rms=rms, memory_efficient=memory_efficient)


def examine(gammas, rms, eps=1e-5, size=1.0, n2=512) -> None:
    """Hold gradients of size `size` to their bounds, with every thread's gammas these ones in turn.

    grad_input has the same bits as of few rows, whose blocks take all gammas for rare.
    """
    rng = np.random.default_rng(5)
    x, grad = rng.uniform(-1, 1, size=(2, 5, n2))
    weight, bias = np.resize(gammas, n2).astype(BFLOAT16), None if rms else np.zeros(n2, BFLOAT16)
    case = Case(x.astype(BFLOAT16), weight, bias, (grad * size).astype(BFLOAT16), eps, rms)
    assert kind_of(problem_of(case.x, weight, bias, rms), 8, 8).narrow
    plan = PIPELINED.plan(Problem("backward", "rms" if rms else "layer", 5, n2, "bfloat16"), Device.named("h200"))
    bound = backward_bound(case, arithmetic(case, plan.rows, plan.columns), True)
    assert np.isfinite(bound.grad_weight).mean() >= 0.75, "a bound that says something"
    found: list[bytes] = []

    def noted(*how):
        gradients = backward(*how)
        found.append(np.asarray(gradients[0]).tobytes())
        return gradients

    with pytest.MonkeyPatch.context() as patch:
        for turn in range(2):
            for memory_efficient in (False, True):
                examine_backward(case, None, PIPELINED, memory_efficient, noted)
            if turn == 0:
                devices.many_rows(patch)
    assert found[:2] == found[2:]


@both_norms
def test_ordinary_gammas_are_within_the_bounds(rms):
    examine([0.5, -2.0, 1e-3, 300.0], rms)


@both_norms
def test_clamped_gammas_are_within_the_bounds(rms):
    examine([0.0, -0.0, 1e-6, -1e-6, 0.75], rms)


@both_norms
def test_large_gammas_are_within_the_bounds(rms):
    """Whose reciprocals are subnormal numbers."""
    examine([1.5 * 2.0**126, -(2.0**127), 2.0**126, 2.0**120], rms, size=2.0**-60)


@both_norms
def test_small_gammas_are_within_the_bounds(rms):
    """The second and third are subnormal numbers."""
    examine([2.0**-126, -(2.0**-127), 3 * 2.0**-128, 2.0**-125], rms, eps=2.0**-128)


rare_gammas = pytest.mark.parametrize("rare", [0.0, 1e-6, 2.0**127])


@rare_gammas
def test_a_single_rare_gamma_is_found_in_a_row_s_last_vector(rare):
    examine([*[0.75] * 511, rare], rms=True, size=2.0**-60)


@rare_gammas
def test_a_single_rare_gamma_is_found_at_the_end_of_an_odd_row(rare):
    """Rows that begin in the middle of a vector are asked in another way."""
    examine([*[0.75] * 518, rare], rms=True, size=2.0**-60, n2=519)


def test_what_comes_in_vectors_of_eight_is_narrow():
    half, single = np.zeros(8, BFLOAT16), np.zeros(8, np.float32)
    problem = problem_of(half, half, half)
    assert kind_of(problem, 8, 8).narrow
    assert not kind_of(problem, 8, 4).narrow
    assert not kind_of(problem, 4, 4).narrow
    assert not kind_of(problem_of(half, half, single), 8, 8).narrow
    assert not kind_of(problem_of(half, None, None), 8, 8).narrow


@pytest.mark.parametrize("memory_efficient", [False, True])
@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16, np.float32])
def test_float16_is_told_apart_where_it_is_recomputed_from(dtype, memory_efficient):
    array = np.zeros(8, dtype)
    kind = kind_of(problem_of(array, array, array, memory_efficient=memory_efficient), 4, 4)
    assert kind.float16 == (dtype is np.float16 and memory_efficient)
    assert (table_for(2, 2, kind) is RECOMPUTED_FLOAT16_WITH_BIAS) == kind.float16
