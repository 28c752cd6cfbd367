"""Every reference solution passes, every wrong one fails for its reason, and a solution only adds lines."""

import difflib

import numpy as np
import pytest
from course.solved import OTHERS, WRONG, solution

from normlab.course import catalogue, grading
from normlab.course.process import Limits, Solution
from normlab.course.rules import added_lines
from normlab.engine import compile_ptx


def test_there_are_three_wrong_solutions_for_every_exercise():
    for path in catalogue.FILES.values():
        assert len([one for one in WRONG if one.exercise == path.stem]) >= 3, path.stem
    assert len(catalogue.FILES) >= 16


@pytest.mark.parametrize("number", catalogue.FILES)
def test_a_reference_solution_passes_and_only_adds_lines(number):
    source, skeleton = solution(number), catalogue.skeleton(number)
    result = grading.check(number, source, "solution.py")
    assert result.failure is None
    assert result.points == result.possible
    assert result.seconds < 10  # 0.1 to 0.6, measured
    assert [line for line in difflib.ndiff(skeleton.splitlines(), source.splitlines()) if line.startswith("-")] == []


@pytest.mark.parametrize("given", OTHERS, ids=str)
def test_other_right_solutions_pass_too(given):
    assert grading.check(given.number, given.source, "other.py").failure is None


@pytest.mark.parametrize("given", WRONG, ids=str)
def test_a_wrong_solution_fails_for_its_reason(given, tmp_path):
    file = tmp_path / f"{given.exercise}.py"
    file.write_text(given.source)
    result = grading.check(given.number, given.source, str(file), limits=Limits(seconds=1.0))
    assert result.failure is not None
    told = "\n".join([result.failure.headline, *result.failure.details])
    assert result.failure.kind == given.kind, told
    assert given.says in told
    assert result.points < result.possible


@pytest.mark.parametrize("number", catalogue.FILES)
def test_an_untouched_exercise_is_not_begun(number):
    result = grading.check(number, catalogue.skeleton(number), "untouched.py")
    assert (result.failure.kind, result.points) == ("untouched", 0)


@pytest.mark.parametrize("number", catalogue.FILES)
def test_a_reference_solution_compiles_for_a_gpu_in_float32(number):
    pytest.importorskip("numba_cuda", reason="PTX is made by numba-cuda, which has no wheels for this platform")
    names = {}
    exec(compile(solution(number), f"solution_{number}.py", "exec"), names)
    exercise = catalogue.exercise(number)
    case = exercise.make(exercise.example_case)
    for launch in case.launches:
        given = [case.arrays[one] if isinstance(one, str) else one for one in launch.arguments]
        types = [(one.dtype, one.ndim) if isinstance(one, np.ndarray) else np.dtype(type(one)) for one in given]
        assert ".f64" not in compile_ptx(names[launch.kernel], tuple(types))


@pytest.mark.parametrize("number", catalogue.FILES)
def test_every_exercise_has_hints_an_example_and_its_number(number):
    exercise, text = catalogue.exercise(number), catalogue.skeleton(number)
    assert text.startswith(f'"""{int(number)} · ')
    assert "\nChecked: " in text
    assert "\nTo write: " in text
    assert "# Your line" in text
    assert len(exercise.hints) >= 3
    assert exercise.example.keys() == exercise.sizes.keys()
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("number", catalogue.FILES)
def test_a_budget_is_what_the_reference_solution_needs(number):
    exercise, source = catalogue.exercise(number), solution(number)
    with Solution(source, "solution.py") as process:
        traces = process.run(exercise.make(exercise.example_case), "trace").observed["traces"]
        busiest = process.run(exercise.make(exercise.example_case), "busiest").observed["busiest"]["elements"]
    for budget in exercise.budgets:
        assert sum(one["metrics"][budget.metric] for one in traces) == budget.at_most
    if exercise.elements is not None:
        # Some room: other right solutions let other threads store a row's statistics. Too little for twice the work.
        assert busiest <= exercise.elements < 1.4 * busiest
    if exercise.lines is not None:
        assert added_lines(source, catalogue.skeleton(number)) == exercise.lines
