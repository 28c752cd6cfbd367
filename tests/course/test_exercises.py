"""Every reference solution passes, every wrong one fails for its reason, and a solution only adds lines."""

import difflib
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from course.solved import OTHERS, WRONG, in_turn, thin_out

from normlab.course import catalogue, grading, reference
from normlab.course.given import added_lines
from normlab.course.hidden import Hidden
from normlab.course.process import Limits
from normlab.engine import compile_ptx

OTHER_SEED = Hidden(1, grading.DRAWS, {})  # graded in the process of the first seed, which compiles once


def test_every_exercise_has_three_other_right_solutions_and_six_wrong_ones():
    for given, least in ((OTHERS, 3), (WRONG, 6)):
        counts = Counter(one.number for one in given)
        assert {number: counts[number] for number in catalogue.FILES if counts[number] < least} == {}
        assert len(set(map(str, given))) == len(given)
    assert len(catalogue.FILES) >= 16


@pytest.mark.parametrize("number", catalogue.FILES)
def test_a_reference_solution_passes_and_only_adds_lines(number, monkeypatch):
    source, skeleton = reference.source(number), catalogue.skeleton(number)
    thin_out(monkeypatch, {0: 1, OTHER_SEED.seed: 3})
    result = grading.check(number, source, "/nowhere/right.py", hidden=OTHER_SEED)
    assert (result.failure, result.hidden_failure) == (None, None)
    assert result.points == result.possible
    gone = [line for line in difflib.ndiff(skeleton.splitlines(), source.splitlines()) if line.startswith("-")]
    assert [line for line in gone if "# Your line" not in line] == []


@pytest.mark.parametrize(("given", "seed"), in_turn(OTHERS, [0, OTHER_SEED.seed]))
def test_other_right_solutions_pass_too(given, seed, monkeypatch):
    thin_out(monkeypatch, {seed: 2})  # reference solutions are graded on all, of both seeds
    result = grading.check(given.number, given.source, "/nowhere/right.py", seed)
    assert result.failure is None
    assert result.points == result.possible


PATIENT = Limits(seconds=6.0, altogether=60.0, patience=60.0)  # a wasteful solution on a busy machine ends in time, too
ENDLESS = replace(PATIENT, seconds=0.5)  # none of its time would be enough


@pytest.mark.parametrize(("given", "twice"), in_turn(WRONG, [True, False]), ids=str)
def test_a_wrong_solution_fails_for_its_reason_and_its_line_is_named(given, twice, tmp_path, monkeypatch):
    file = tmp_path / "wrong.py"
    file.write_text(given.source)
    arguments = given.number, given.source, str(file)
    if given.kind in ("budget", "lines"):  # it is right on all inputs, and wastes on those on which costs are counted
        thin_out(monkeypatch, {0: 8, OTHER_SEED.seed: 8})
        monkeypatch.setattr(grading._Grader, "compiles", lambda _: None)  # the compiler's word is tried with right ones
    if " = " not in given.says:  # the words of the others name the smallest input
        monkeypatch.setattr(grading, "TRIES", 2)
    limits = ENDLESS if given.kind == "time" else PATIENT
    result = grading.check(*arguments, hidden=OTHER_SEED, limits=limits)
    assert result.failure is not None
    told = "\n".join([result.failure.headline, *result.failure.details])
    assert not (result.parts["right"] and result.parts["budgets"])
    assert result.failure.kind == given.kind, told
    assert given.says in told
    assert result.failure.line or given.kind in ("lines", "removed"), told
    if twice and result.hidden_failure is None:  # it failed before the other seed's inputs came
        monkeypatch.setattr(grading, "TRIES", 0)  # a smaller input has been looked for once
        again = grading.check(*arguments, seed=OTHER_SEED.seed, limits=limits)
        assert again.points < again.possible
        assert again.failure.line or given.kind in ("lines", "removed")


def test_an_untouched_exercise_is_not_begun():
    for number in catalogue.FILES:
        skeleton = catalogue.skeleton(number)
        for text in (
            skeleton,
            skeleton.replace("\n\n", "\n \n"),
            re.sub(r"( *)# Your line.*", r"\1pass  # later", skeleton),
        ):
            result = grading.check(number, text, "untouched.py")
            assert (result.failure.kind, result.points) == ("untouched", 0)


@pytest.mark.parametrize("number", catalogue.FILES)
def test_a_reference_solution_compiles_for_a_gpu_in_float32(number):
    pytest.importorskip("numba_cuda", reason="PTX is made by numba-cuda, which has no wheels for this platform")
    names = {}
    exec(compile(reference.source(number), f"<{number}>", "exec"), names)
    exercise = catalogue.exercise(number)
    case = exercise.make(exercise.example_case)
    for launch in case.launches:
        given = [case.arrays[one] if isinstance(one, str) else one for one in launch.arguments]
        types = [(one.dtype, one.ndim) if isinstance(one, np.ndarray) else np.dtype(type(one)) for one in given]
        assert ".f64" not in compile_ptx(names[launch.kernel], tuple(types))


@pytest.mark.parametrize("number", catalogue.FILES)
def test_every_exercise_has_hints_an_example_its_number_and_the_lines_that_the_reference_solution_needs(number):
    exercise, text = catalogue.exercise(number), catalogue.skeleton(number)
    assert text.startswith(f'"""{int(number)} · ')
    assert "\nChecked: " in text
    assert "\nTo write: " in text
    assert "# Your line" in text
    assert len(exercise.hints) >= 3
    assert exercise.example.keys() == exercise.sizes.keys()
    assert max(map(len, text.splitlines())) <= 120
    assert exercise.lines in (None, added_lines(reference.source(number), text))


@pytest.mark.parametrize("number", catalogue.FILES)
def test_sizes_beyond_the_range_are_beyond_it(number):
    for size in catalogue.exercise(number).sizes.values():
        if size.beyond:
            drawn = {size.beyond_the_range(np.random.default_rng(seed)) for seed in range(200)}
            assert size.largest < min(drawn) <= max(drawn) <= size.beyond
