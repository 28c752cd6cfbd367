"""Every step of the backward ladder against the oracle, within its bound, on all paths."""

import pytest
from draws import WIDTHS, cases
from examine import examine_backward
from hypothesis import given, settings

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
