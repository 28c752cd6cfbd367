"""A class: whose folders are graded, that each file is graded once, and what a teacher is told."""

import csv
import os
import sys
import threading
import time
import zipfile

import pytest
from course.solved import OTHERS, WRONG, thin_out
from typer.testing import CliRunner

from normlab.cli import app
from normlab.course import catalogue, classroom, gradebook, grading, handed_in, overview, process, reference
from normlab.course.failure import Failure
from normlab.course.grading import Result
from normlab.course.overview import Student
from normlab.course.ranking import Cost

ROTATION = catalogue.number_of("warp_sum_rotation")
WELFORD = catalogue.number_of("welford_step")


def put(folder, number, text=None):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / catalogue.FILES[number].name
    path.write_text(reference.source(number) if text is None else text)
    return path


def result(number, right=6, budgets=2, failure=None, **more):
    exercise = catalogue.exercise(number)
    return Result(number, exercise.name, exercise.title, {"right": right, "budgets": budgets}, failure, **more)


def student(name, **results):
    """A student with the results of some exercises, by number without its 0; no file of the others."""
    found = {f"{int(number[1:]):02}": one for number, one in results.items()}
    missing = Failure("missing", "there is no file")
    return Student(name, [found.get(number) or result(number, 0, 0, missing) for number in catalogue.FILES])


@pytest.fixture
def only_two_exercises(monkeypatch):
    monkeypatch.setattr(catalogue, "FILES", {number: catalogue.FILES[number] for number in (WELFORD, ROTATION)})


# --- whose folders -----------------------------------------------------------------------------------------------


def test_folders_of_folders_names_of_all_kinds_and_students_without_files(tmp_path):
    for name in ("ada", "section 1/Zoë Müller", "section 1/李 雷", "week/my_course", "<b>&'x\"", "tab\there"):
        put(tmp_path / name, ROTATION)
    for name in ("empty", "section 1/late", "week/notes", "scores/results", ".git/x", "__MACOSX/ada"):
        (tmp_path / name).mkdir(parents=True)
    put(tmp_path / "scores" / "old", ROTATION)
    (tmp_path / "notes.txt").write_text("no student")
    found = classroom.students(tmp_path, tmp_path / "scores")
    names = [
        "<b>&'x\"",
        "ada",
        "empty",
        "section 1/Zoë Müller",
        "section 1/late",
        "section 1/李 雷",
        "tab\ufffdhere",
        "week",
    ]
    assert list(found) == sorted(names)
    assert found["week"] == tmp_path / "week" / "my_course"
    assert found["empty"] == tmp_path / "empty"


@pytest.mark.parametrize("beside", ["late.zip", "07_welford_step (1).py"])
def test_what_lies_beside_a_student_s_folder_of_exercises_is_handed_in_too(tmp_path, beside):
    put(tmp_path / "ada" / "my_course", ROTATION)
    text = reference.source(WELFORD)
    if beside == "late.zip":
        with zipfile.ZipFile(tmp_path / "ada" / beside, "w") as archive:
            archive.writestr("07_welford_step.py", text)
    else:
        (tmp_path / "ada" / beside).write_text(text)
    found = classroom.students(tmp_path, tmp_path / "scores")
    handed_in.lay_out(found["ada"], tmp_path / "clean")
    assert {path.name[:2] for path in (tmp_path / "clean").iterdir()} == {WELFORD, ROTATION}


def test_exercises_and_archives_that_no_student_has_are_told(tmp_path):
    for name in ("ada", "section 1/bob", "section 1/cem"):
        put(tmp_path / name, ROTATION)
    loose = ["dan_12_345_01_map.py", "eve.7z", "section 1/fay.tar.gz"]
    for name in (*loose, "notes.txt", "hidden.toml", "ada/fine.rar"):
        (tmp_path / name).write_text("?")
    found = classroom.students(tmp_path, tmp_path / "scores")
    assert classroom.left_out(tmp_path, found) == loose
    assert classroom.left_out(tmp_path / "ada", classroom.students(tmp_path / "ada", tmp_path / "scores")) == []
    done = CliRunner().invoke(app, ["course", "grade", str(tmp_path), "--output", str(tmp_path / "scores")])
    assert f"left out, because a student is a folder or a zip: {', '.join(loose)}\n" in done.stdout


def test_scores_that_were_written_into_a_class_s_folder_are_no_student_s(tmp_path):
    for name in ("ada", "bob"):
        put(tmp_path / name, ROTATION)
    for output in (tmp_path, tmp_path / "before", tmp_path / "now"):
        gradebook.write([student("ada")], output, 0)
    put(tmp_path / "mallory" / "results", ROTATION)
    (tmp_path / "mallory" / "scores.json").touch()
    for output in ("now", "."):
        assert list(classroom.students(tmp_path, tmp_path / output)) == ["ada", "bob", "mallory"]


def test_folders_whose_names_print_alike_are_two_students(tmp_path):
    for name in ("a\tb", "a\nb"):
        put(tmp_path / name, ROTATION)
    assert list(classroom.students(tmp_path, tmp_path / "scores")) == ["a\ufffdb", "a\ufffdb (2)"]


def test_a_folder_that_leads_back_to_the_class_is_no_endless_search(tmp_path):
    put(tmp_path / "class" / "ada", ROTATION)
    (tmp_path / "class" / "bob").symlink_to(tmp_path / "class")
    assert list(classroom.students(tmp_path / "class", tmp_path / "scores")) == ["ada", "bob"]


# --- grading -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("only_two_exercises")
def test_equal_files_are_graded_once_and_others_each(tmp_path, monkeypatch):
    for name in ("ada", "bob", "eve"):
        put(tmp_path / name, ROTATION)
    put(tmp_path / "dan", ROTATION, reference.source(ROTATION) + "# mine\n")
    seen, real = [], grading.check
    monkeypatch.setattr(grading, "check", lambda *given, **how: seen.append(given[1]) or real(*given, **how))
    steps = []
    graded = classroom.grade(
        classroom.students(tmp_path, tmp_path / "s"), 0, None, jobs=4, advance=lambda: steps.append(1)
    )
    assert len(seen) == len(set(seen)) == 2
    assert [one.points for one in graded] == [8] * 4
    assert len(steps) == 4 * 2


@pytest.mark.parametrize(("names", "warmed"), [(("ada",), 0), (("ada", "bob"), 1)])
def test_a_class_is_warmed_up_and_one_student_is_not(names, warmed, tmp_path, monkeypatch):
    times = []
    monkeypatch.setattr(process, "prepare_for_a_class", lambda: times.append(1))
    for name in names:
        (tmp_path / name).mkdir()
    classroom.grade({name: tmp_path / name for name in names}, 0, None)
    assert len(times) == warmed


def test_a_class_graded_side_by_side_is_graded_as_one_after_another(tmp_path, monkeypatch):
    thin_out(monkeypatch, {3: 4})
    numbers = [*catalogue.FILES][:6]
    for place, number in enumerate(numbers):
        for given in [one for one in WRONG if one.number == number][:2]:
            put(tmp_path / "class" / f"{given.name} & {place}", number, given.source)
        put(tmp_path / "class" / "ada", number)
    (tmp_path / "class" / "ada" / catalogue.FILES[numbers[0]].name).write_bytes(b"\xff\xfe")
    folders = classroom.students(tmp_path / "class", tmp_path / "out")
    written = []
    for jobs in (1, 5):
        gradebook.write(classroom.grade(folders, 3, None, jobs), tmp_path / f"{jobs}", 3, ranked=True)
        written.append({path.name: path.read_bytes() for path in (tmp_path / f"{jobs}").rglob("*.*")})
    assert written[0] == written[1]


def test_an_error_of_the_grader_costs_one_file_and_is_the_teacher_s_to_see(tmp_path, monkeypatch):
    put(tmp_path / "ada", ROTATION)
    put(tmp_path / "ada", WELFORD)
    real = grading.rules.broken

    def broken(source, skeleton):
        if "def welford_step" in source:
            raise ZeroDivisionError("of the grader")
        return real(source, skeleton)

    monkeypatch.setattr(grading.rules, "broken", broken)
    (graded,) = classroom.grade({"ada": tmp_path / "ada"}, 0, None)
    results = {one.number: one for one in graded.results}
    assert (results[WELFORD].points, results[WELFORD].failure.kind) == (0, "grader")
    assert "ZeroDivisionError: of the grader" in results[WELFORD].failure.headline
    assert results[ROTATION].points == 8
    assert overview.mistakes([graded])[0].kind == "grader"


def test_two_threads_that_start_processes_leave_the_grader_as_it_was(tmp_path):
    before = sys.path[:], os.environ.get("PYTHONSAFEPATH")
    first_is_in, second_is_in = threading.Event(), threading.Event()

    def first():
        with process._isolated(tmp_path):
            first_is_in.set()
            second_is_in.wait(0.3)  # in vain: the second waits for the first

    def second():
        first_is_in.wait()
        with process._isolated(tmp_path):
            second_is_in.set()
            time.sleep(0.1)

    threads = [threading.Thread(target=one) for one in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (sys.path, os.environ.get("PYTHONSAFEPATH")) == before


# --- what a teacher is told --------------------------------------------------------------------------------------


def test_states_and_where_a_student_is_stuck():
    late = result(ROTATION, 6, 0, Failure("budget", "32 shuffles"))
    wrong = result("12", 0, 0, Failure("race", "race on buffer", 7))
    blank = result(WELFORD, 0, 0, Failure("untouched", "nothing is written yet"))
    ada = student("ada", **{f"n{ROTATION}": late, f"n{WELFORD}": blank, "n12": wrong, "n13": result("13")})
    assert ada.stuck_at is wrong  # a wrong one counts more than one that costs too much
    assert (ada.solved, ada.numbers("not begun"), ada.numbers("costly")) == (1, [WELFORD], [ROTATION])
    assert student("bob", **{f"n{ROTATION}": late}).stuck_at is late
    assert student("eve").stuck_at is None
    summary = {one.number: one.states for one in overview.summaries([ada, student("eve")])}
    assert summary["12"] == {"solved": [], "costly": [], "wrong": ["ada"], "not begun": [], "missing": ["eve"]}
    assert summary[WELFORD]["not begun"] == ["ada"]


def test_hidden_checks_that_fail_leave_an_exercise_unsolved():
    failure = Failure("values", "only there")
    hidden = result(ROTATION, hidden_failure=failure)
    hidden.parts["hidden"] = 0
    assert overview.state(hidden) == "costly"
    (mistake,) = overview.mistakes([student("ada", **{f"n{ROTATION}": hidden})])
    assert (mistake.text, mistake.hidden) == ("only there", True)


def test_the_same_message_is_one_mistake_whatever_its_line():
    def failed(line, text="race on buffer"):
        return {f"n{ROTATION}": result(ROTATION, 0, 0, Failure("race", text, line))}

    elsewhere = {f"n{WELFORD}": result(WELFORD, 0, 0, Failure("race", "race on buffer", 3))}
    graded = [student("ada", **failed(3)), student("bob", **failed(9)), student("dan", **failed(3, "race on tile"))]
    found = overview.mistakes([*graded, student("eve", **elsewhere)])
    assert [(one.number, one.text, one.students) for one in found] == [
        (ROTATION, "race on buffer", ["ada", "bob"]),
        (WELFORD, "race on buffer", ["eve"]),
        (ROTATION, "race on tile", ["dan"]),
    ]


def test_only_solved_exercises_are_ranked_by_cost(tmp_path):
    number = catalogue.number_of("row_moments")
    text = reference.source(number)
    over = next(one for one in WRONG if (one.number, one.kind) == (ROTATION, "budget"))
    put(tmp_path / "ada", number)
    put(tmp_path / "bob", number, text.replace("\n    ", "\n    # the same\n    ", 1))
    put(tmp_path / "eve", number, catalogue.skeleton(number))
    put(tmp_path / "ada", ROTATION)
    put(tmp_path / "eve", ROTATION, over.source)
    graded = classroom.grade(classroom.students(tmp_path, tmp_path / "s"), 0, None)
    ranks = overview.rankings(graded)
    (place,) = ranks[number]
    assert (place.rank, place.names) == (1, ["ada", "bob"])
    assert all(count > 0 for count in place.cost)  # row_moments reads, shares, waits and shuffles
    assert [one.names for one in ranks[ROTATION]] == [["ada"]]
    assert set(ranks) == {number, ROTATION}


def test_sectors_are_compared_before_what_costs_less():
    ada, bob = result("13", cost=Cost(10, 99, 9, 9)), result("13", cost=Cost(11, 0, 0, 0))
    places = overview.rankings([student("bob", n13=bob), student("ada", n13=ada), student("eve")])["13"]
    assert [(one.rank, one.names) for one in places] == [(1, ["ada"]), (2, ["bob"])]


def test_a_solution_that_costs_less_than_the_reference_comes_first(monkeypatch):
    thin_out(monkeypatch, {0: 8})  # costs are counted on inputs of their own
    found = []
    for given in [*{one.number: one for one in OTHERS}.values()][::6]:
        for text in (given.source, reference.source(given.number)):
            found.append(grading.check(given.number, text, "/nowhere/x.py").cost)
    pairs = list(zip(found[::2], found[1::2], strict=True))
    assert all(pairs[0])
    assert any(mine != theirs for mine, theirs in pairs)  # it is the solution that is counted, not the reference


def test_a_spreadsheet_takes_no_name_and_no_message_for_a_formula(tmp_path):
    failed = result(ROTATION, 0, 0, Failure("exception", "=cmd|'/c calc'!A1"))
    gradebook.write([student("=1+2", **{f"n{ROTATION}": failed})], tmp_path, 0)
    with (tmp_path / "scores.csv").open(encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["student"] == "'=1+2"
    assert row["because"].startswith("'=cmd")


def test_a_student_of_a_section_gets_a_file_in_its_folder(tmp_path):
    gradebook.write([student("section 1/Zoë"), student("ada")], tmp_path, 0)
    assert (tmp_path / "results" / "section 1" / "Zoë.json").exists()
