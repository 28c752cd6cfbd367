"""Every step of the backward ladder against the oracle, within its bound, on all paths."""

import numpy as np
import pytest
from draws import WIDTHS, Case, cases
from examine import examine_backward
from hypothesis import given, settings
from hypothesis import strategies as st

from normlab.host.checks import step_of
from normlab.kernels import LADDERS

STEPS = pytest.mark.parametrize("step", LADDERS["backward"], ids=lambda step: step.name)
APEX = step_of("forward", "apex")


@STEPS
@pytest.mark.parametrize("memory_efficient", [False, True, "exact"], ids=["saved", "recompute", "exact"])
@settings(max_examples=12)  # of every step on every path
@given(case=cases(widths=WIDTHS[:-1]))  # as many again as the others together; test_invariance has wider ones
def test_backward_is_within_its_bound(step, memory_efficient, case):
    examine_backward(case, APEX, step, memory_efficient)


# Columns, eps, and the sizes of x, of grad_output and of weight, with which numbers on the way over- or underflow.
ENDS = [
    (300, 0.0, 4e-20, 1, 1),  # 1 / variance
    (300, 1e-5, 1e10, 1e29, 1),  # grad_output (x - mean)
    (1, 1e-5, 1e19, 1, 1),  # a gradient of eps / σ³, from terms 1e26 times as large
    (64, 1e-5, 2e-24, 1e-24, 1),
    (256, 1e-30, 1e-10, 1e-35, 1e3),  # what underflows is multiplied by weight afterwards
    (33, 1e-5, 1, 1e38, 1e-3),  # some of grad_output are infinite
    (520, 1e-5, 7e4, 2e-38, 1),  # from the output: mean(g x̂) / σ
    (520, 0.0, 6e-6, 3e-38, 2e-19),  # from the output: grad_output y, divided by weight afterwards
]


@pytest.mark.parametrize("path", [False, True, "exact"], ids=["saved", "recompute", "exact"])
@pytest.mark.parametrize("end", ENDS, ids=lambda end: "-".join(map(str, end)))
@settings(max_examples=3)
@given(seed=st.integers(0, 2**32 - 1), rms=st.booleans())
def test_bounds_hold_where_float32_ends(end, path, seed, rms):
    (n2, eps, *sizes), rng = end, np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        x, grad, weight = (
            (rng.normal(size=shape) * size).astype(np.float32)
            for size, shape in zip(sizes, ((4, n2), (4, n2), n2), strict=True)
        )
        case = Case(x, weight, None if rms else weight.copy(), grad, eps, rms)
        for step in LADDERS["backward"][-2:]:
            examine_backward(case, None, step, path)
