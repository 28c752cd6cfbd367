"""What is told of a solved exercise: the budget, what comes next, and other good solutions."""

import shutil

import pytest
from typer.testing import CliRunner

from normlab.cli import app
from normlab.course import catalogue, discussion, grading, reference
from normlab.course.failure import Spent


def checked(folder, *arguments):
    return CliRunner().invoke(app, ["course", "check", *arguments, "--dir", str(folder)]).stdout


@pytest.fixture
def solved(tmp_path):
    (tmp_path / catalogue.file("02").name).write_text(reference.source("02"))
    return tmp_path


@pytest.mark.parametrize("number", catalogue.FILES)
def test_a_discussion_loses_no_heading_and_each_exercise_names_its_tutorial_and_the_next_exercise(number):
    text = reference.discussion(number)
    assert text.count("\n## ") + 1 == text.count("```python\n") == len(discussion.ways(number))
    assert all(way.text.endswith(".") for way in discussion.ways(number))
    text, after = catalogue.skeleton(number), discussion.following(number)
    named = (
        f"Next: exercise {int(after)}, {catalogue.FILES[after].stem[3:]}." if after else "This is the last exercise."
    )
    assert f"\n\nTutorial: normlab tutorials {catalogue.exercise(number).tutorial}. {named}\n" in text


@pytest.mark.parametrize(
    ("spent", "told"),
    [
        (
            (Spent("loads", 3, 4), Spent("stores", 5, 5)),
            "below the budget, by 25% in loads: 3 of 4 loads, 5 of 5 stores",
        ),
        ((Spent("stores", 5, 5),), "at the budget: 5 of 5 stores"),
        ((), ""),
    ],
)
def test_how_far_below_the_budget(spent, told):
    assert discussion.standing(spent) == told


def test_fewer_loads_than_the_reference_s_are_below_the_budget():
    (way,) = [way for way in discussion.ways("05") if way.title == "Both ends by one load"]
    result = grading.check("05", reference.filled("05", way.code), "/nowhere/05_stencil.py")
    standing = discussion.standing(result.spent)
    assert standing.startswith("below the budget, by ")
    assert "6 of 7 loads by warps" in standing


def test_a_solved_exercise_is_discussed_if_it_is_asked_for_by_name(solved):
    shown = checked(solved, "guard")
    assert "at the budget: 2 of 2 loads by warps" in shown
    assert "next: 3 Threads in two dimensions (normlab course check 3; its tutorial: normlab tutorials 1)" in shown
    assert "One way to write it" in shown
    assert "      def negate(x, y):" in shown
    assert "Leave early" in shown
    assert "One way to write it" not in checked(solved)


def test_solutions_can_be_hidden(solved):
    assert CliRunner().invoke(app, ["course", "start", str(solved), "--hide-solutions"]).exit_code == 0
    shown = checked(solved, "guard")
    assert "at the budget" in shown
    assert "One way to write it" not in shown
    assert "One way to write it" not in checked(solved, "guard")  # nor after the folder was written to


def test_a_failure_names_hint_and_tutorial(solved):
    shutil.copy(catalogue.FILES["07"], solved)
    assert "a hint: normlab course hint 7; its tutorial: normlab tutorials 2" in checked(solved, "7")
