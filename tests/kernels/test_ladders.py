"""The ladders: their order, and what each step says about itself."""

from types import ModuleType, SimpleNamespace

import pytest

from normlab import kernels
from normlab.kernels import BEST, LADDERS


@pytest.mark.parametrize("ladder", LADDERS)
def test_every_step_has_a_name_of_its_own_and_one_line_of_summary(ladder):
    steps = LADDERS[ladder]
    assert len({step.name for step in steps}) == len(steps)
    assert BEST.get(ladder, "batch") in {step.name for step in steps}
    for step in steps:
        assert step.summary
        assert "\n" not in step.summary
        sides = (1,) * (3 if ladder == "sgemm" else 2)
        if ladder != "family":
            assert 0 < step.simulated_seconds(*sides) < step.simulated_seconds(*(300 * side for side in sides))


def test_step_10_comes_after_step_9(monkeypatch):
    files = [f"step_{number}_name" for number in (10, 0, 9, 2)]
    monkeypatch.setattr(kernels, "iter_modules", lambda path: [SimpleNamespace(name=name) for name in files])
    monkeypatch.setattr(kernels, "import_module", lambda name: SimpleNamespace(STEP=name.split(".")[-1]))
    package = ModuleType("package")
    package.__path__ = []
    assert kernels._ladder(package) == ("step_0_name", "step_2_name", "step_9_name", "step_10_name")
