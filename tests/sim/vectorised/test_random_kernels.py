"""Both engines make the same of kernels written at random. `kernels_at_random.py` compares more of them by the hour."""

import pytest
from sim.vectorised.kernels_at_random import differ

EACH = 25


@pytest.mark.parametrize("first", range(0, 100, EACH))
def test_both_engines_agree_on_kernels_at_random(first):
    said = []
    for seed in range(first, first + EACH):
        found, who = differ(seed)
        assert found is None, f"seed {seed}: {found[0]}"
        said.append(who)
    assert said.count("the vectorised engine ran") > EACH * 0.7


@pytest.mark.parametrize("schedule", ["reverse", 7])
def test_both_engines_agree_in_another_schedule(schedule):
    said = []
    for seed in range(300, 312):
        found, who = differ(seed, schedule=schedule)
        assert found is None, f"seed {seed}: {found[0]}"
        said.append(who)
    assert said.count("the vectorised engine ran") > 4
