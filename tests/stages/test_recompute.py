"""Element-wise stages: the normalised value from input and from output, the clamp, the affine map and the gradient."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from normlab import oracle
from normlab.engine import cuda, launch
from normlab.stages import clamp_by_magnitude, normalised_from_input, normalised_from_output
from normlab.stages.recompute import affine

floats = st.floats(-1e3, 1e3, width=32)


@cuda.jit
def clamp(gammas, eps, clamped):
    i = cuda.grid(1)
    if i < gammas.shape[0]:
        clamped[i] = clamp_by_magnitude(gammas[i], eps)


def clamped(gammas, eps):
    out = np.full(len(gammas), 7, np.float32)
    launch(clamp, 1, len(gammas), np.array(gammas, np.float32), np.float32(eps), out)
    return out


def test_clamp_pushes_gamma_out_of_the_gap_and_keeps_its_side():
    eps = np.float32(1e-5)
    got = clamped([0.0, -0.0, 1e-6, -1e-6, eps, -eps, 1.0, -1.0, np.inf, -np.inf], eps)
    assert got.tolist() == [eps, eps, eps, -eps, eps, -eps, 1.0, -1.0, np.inf, -np.inf]


def test_clamp_leaves_nan_alone_and_does_nothing_for_a_negative_eps():
    assert np.isnan(clamped([np.nan], 1e-5)[0])
    assert clamped([0.0, 0.25, -0.25], -0.5).tolist() == [0.0, 0.25, -0.25]


@given(st.lists(floats, min_size=1, max_size=32), st.floats(0, 10, width=32))
def test_clamped_gamma_is_at_least_eps_and_never_changes_sign(gammas, eps):
    got = clamped(gammas, eps)
    for gamma, result in zip(np.array(gammas, np.float32), got, strict=True):
        assert abs(result) == max(abs(gamma), np.float32(eps))
        assert (result >= 0) == (gamma >= 0)


@cuda.jit
def there_and_back(x, mean, invvar, gamma, beta, eps, results):
    """results (4,): x̂ from the input, y, x̂ from y, and the same with no parameters and no mean."""
    normalised = normalised_from_input(x, mean, invvar)
    y = affine(normalised, gamma, beta)
    results[0] = normalised
    results[1] = y
    results[2] = normalised_from_output(y, gamma, beta, eps)
    results[3] = normalised_from_output(affine(normalised_from_input(x, None, invvar), None, None), None, None, eps)


@given(floats, floats, st.floats(1 / 128, 100, width=32), floats, floats)
def test_recomputing_returns_the_normalised_value_within_the_law(x, mean, invvar, gamma, beta):
    eps = np.float32(1e-5)
    results = np.full(4, np.nan, np.float32)
    launch(there_and_back, 1, 1, *map(np.float32, (x, mean, invvar, gamma, beta)), eps, results)
    xhat = np.float64(results[0])
    assert results[3] == np.float32(x) * np.float32(invvar)
    oracle.assert_within(results[0], (x - mean) * invvar, 3 * 2.0**-24 * abs((x - mean) * invvar) + 1e-40, "x̂")
    if abs(gamma) > eps:
        # the law, for y rounded once to float32; computing y and x̂ rounds four times more
        law = float(
            oracle.recompute_error(np.array([[xhat]]), np.array([gamma]), np.array([beta]), 1e-5, "float32").item()
        )
        oracle.assert_within(results[2], xhat, 5 * law + 4 * 2.0**-24 * abs(xhat) + 1e-30, "recomputed x̂")
    elif gamma == 0 and abs(beta) > 0:
        assert results[2] == 0


def test_clamp_costs_exactly_the_missing_share_of_the_normalised_value():
    results = np.full(4, np.nan, np.float32)
    launch(there_and_back, 1, 1, *map(np.float32, (2.0, 0.0, 1.0, 0.25, 0.0, 0.5)), results)
    assert results[2] == 1.0  # x̂ = 2, gamma 1/4, clamped to 1/2: half of x̂ comes back


@pytest.mark.parametrize("gamma", [np.nan, np.inf])
def test_recomputing_lets_nan_and_inf_through(gamma):
    results = np.zeros(4, np.float32)
    launch(there_and_back, 1, 1, *map(np.float32, (2.0, 0.0, 1.0, gamma, 0.0, 0.5)), results)
    assert np.isnan(results[2])
