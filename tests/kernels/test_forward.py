"""Every step of the forward ladder against the oracle, within its bound."""

import pytest
from draws import cases
from examine import examine_forward
from hypothesis import given, settings

from normlab.kernels import LADDERS

STEPS = pytest.mark.parametrize("step", LADDERS["forward"], ids=lambda step: step.name)


@STEPS
@settings(max_examples=30)
@given(case=cases())
def test_forward_is_within_its_bound(step, case):
    examine_forward(case, step)
