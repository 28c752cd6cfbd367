"""The planted-bug collection itself: marks, launches on the simulator, code for a GPU."""

import inspect
from collections import Counter

import needs
import numpy as np
import pytest
from sim.planted import PLANTED

from normlab.engine import compile_ptx
from normlab.sim import SimulationError, simulate

KINDS = {
    "race",
    "uninitialized-read",
    "out-of-bounds",
    "negative-index",
    "barrier-divergence",
    "shuffle-mask",
    "deadlock",
    "lock-order",
}
SCHEDULES = ("forward", "reverse", 1, 2)

every_bug = pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)


def types_of(arguments):
    """The arguments' types as `compile_ptx` takes them."""
    return tuple((a.dtype, a.ndim) if isinstance(a, np.ndarray) else np.asarray(a).dtype for a in arguments)


def run(kernel, bug, schedule):
    """The launch's arguments after it."""
    arguments = bug.arguments()
    simulate(kernel, schedule, bug.cluster)[bug.configuration](*arguments)
    return [argument for argument in arguments if isinstance(argument, np.ndarray)]


def test_the_collection_is_large_and_has_every_kind():
    assert len(PLANTED) >= 32
    assert len({bug.name for bug in PLANTED}) == len(PLANTED)
    assert set(Counter(bug.kind for bug in PLANTED)) == KINDS


@every_bug
def test_guilty_lines_are_marked_with_the_bug_s_kind_and_the_twin_has_none(bug):
    assert bug.lines
    assert {kind for kind, _ in bug.marks.values()} == {bug.kind}
    assert bug.fixed.py_func.__name__ == f"{bug.name}_fixed"
    assert "BUG" not in inspect.getsource(bug.fixed.py_func)
    assert bug.note.endswith(".")
    assert "\n" not in bug.note


@every_bug
def test_the_mended_kernel_gives_one_result_in_every_schedule(bug):
    first, *others = (run(bug.fixed, bug, schedule) for schedule in SCHEDULES)
    for other in others:
        for got, want in zip(other, first, strict=True):
            np.testing.assert_array_equal(got, want)
    assert all(np.isfinite(array).all() for array in first)


@every_bug
def test_the_mended_kernel_computes_something(bug):
    after = run(bug.fixed, bug, "forward")
    before = [argument for argument in bug.arguments() if isinstance(argument, np.ndarray)]
    assert any((a != b).any() for a, b in zip(after, before, strict=True))


@pytest.mark.parametrize(
    "bug", [bug for bug in PLANTED if bug.kind in ("out-of-bounds", "shuffle-mask")], ids=lambda bug: bug.name
)
def test_the_simulator_stops_at_a_bug_that_it_can_see(bug):
    with pytest.raises((IndexError, SimulationError)):
        run(bug.kernel, bug, "forward")


@needs.compiler
@every_bug
def test_both_kernels_compile_for_a_gpu(bug):
    for kernel in (bug.kernel, bug.fixed):
        assert ".target sm_90" in compile_ptx(kernel, types_of(bug.arguments()))
