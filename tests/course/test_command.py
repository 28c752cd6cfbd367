"""`normlab course`, as a student and as an instructor use it."""

import csv
import json
from functools import partial

import pytest
from commands import invoke
from course.solved import solution

from normlab.course import catalogue
from normlab.course.folder import file_of

run = partial(invoke, "course")
NAMES = [path.name for path in catalogue.FILES.values()]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the exercises, where the student is."""
    assert run("start", tmp_path / "mine").exit_code == 0
    monkeypatch.chdir(tmp_path / "mine")
    return tmp_path / "mine"


def solve(folder, number):
    file_of(folder, number).write_text(solution(number))


def test_start_lays_out_all_exercises_and_keeps_what_is_there(folder):
    assert sorted(path.name for path in folder.iterdir()) == NAMES
    file_of(folder, "03").write_text("mine")
    file_of(folder, "04").unlink()
    done = run("start", folder)
    assert "1 exercises laid out" in done.stdout
    assert "17 that were there stay as they are" in done.stdout
    assert file_of(folder, "03").read_text() == "mine"


def test_a_student_s_way(folder):
    done = run("check")
    assert (done.exit_code, done.stdout) == (0, "nothing is begun yet: the first exercise is 01_welford_step.py\n")
    assert "nothing is written yet" in run("check", 4).stdout
    solve(folder, "04")
    done = run("check", "4")
    assert done.exit_code == 0
    assert done.stdout.startswith("04 32 lanes, one sum: the rotation: solved (8 of 8 points, ")
    file_of(folder, "01").write_text(catalogue.skeleton("01").replace("# Your lines.", "return mean, m2, count"))
    done = run("check")
    assert done.exit_code == 1
    assert "01 One more value: Welford's step: not yet (0 of 6 points" in done.stdout
    assert "a hint: normlab course hint 1" in done.stdout
    assert "04 32 lanes, one sum: the rotation: solved" in done.stdout
    table = run("progress").stdout
    assert "1 of 18 solved; next: normlab course check 1" in table
    states = {line.split()[-1] for line in table.splitlines() if " begun" in line}
    assert states == {"begun"}
    with file_of(folder, "04").open("a") as file:
        file.write("# more\n")
    assert "changed since it was solved" in run("progress").stdout
    assert "0 of 18 solved" in run("progress").stdout


def test_hints_come_one_at_a_time_and_are_remembered(folder):
    hints = catalogue.exercise("06").hints
    for count, hint in enumerate(hints, 1):
        assert run("hint", "block_sum").stdout == f"{count} of {len(hints)}: {hint}\n"
    assert run("hint", 6).stdout == f"{len(hints)} of {len(hints)}: {hints[-1]}\n"
    assert "3 of 3" in run("progress").stdout
    (folder / ".normlab-course.json").write_text("[")
    assert run("hint", 6).stdout.startswith("1 of 3")


def test_a_picture_on_request(folder):
    solve(folder, "05")
    assert "drawn: 05_warp_sum_butterfly.png" in run("check", 5, "--show").stdout
    assert (folder / "05_warp_sum_butterfly.png").stat().st_size > 10_000
    file = file_of(folder, "05")
    file.write_text(file.read_text().replace("    return value", "    return (value, 0)[2]"))
    assert "no picture of it: IndexError" in run("check", 5, "--show").stdout


def test_windows_line_ends_are_none_of_the_student_s_business(folder):
    file_of(folder, "04").write_bytes(b"\xef\xbb\xbf" + catalogue.skeleton("04").replace("\n", "\r\n").encode())
    assert "nothing is written yet" in run("check", 4).stdout
    file_of(folder, "04").write_bytes(solution("04").replace("\n", "\r\n").encode())
    assert run("check", 4).exit_code == 0


def test_files_that_are_none_are_graded(folder):
    file_of(folder, "04").unlink()
    file_of(folder, "04").symlink_to(catalogue.FILES["04"])
    assert "is no plain file" in run("check", 4).stdout
    file_of(folder, "01").write_bytes(b"\xff\xfe")
    file_of(folder, "02").write_bytes(b"#" * 300_000)
    file_of(folder, "03").unlink()
    file_of(folder, "03").mkdir()
    for number, says in (("1", "is no text in UTF-8"), ("2", "more than 200,000"), ("3", "is no plain file")):
        done = run("check", number)
        assert (done.exit_code, says in done.stdout) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["check", "77"], "there is no exercise '77'; there are 01 to 18"),
        (["hint", "x"], "there is no exercise 'x'"),
        (["check", "1", "--dir", "/nowhere"], "there is no 01_welford_step.py in /nowhere"),
        (["check", "--dir", "/nowhere"], "there are no exercises in /nowhere"),
        (["progress", "--dir", "/nowhere"], "there are no exercises in /nowhere"),
        (["check", "1", "--hidden", "/nowhere/h.toml"], "No such file"),
        (["grade", "/nowhere"], "No such file"),
        (["start", "/dev/null/x"], "cannot write to /dev/null/x"),
    ],
)
def test_what_cannot_be_done_is_told_with_exit_code_2(folder, arguments, says):
    done = run(*arguments)
    assert done.exit_code == 2
    assert says in done.stderr


@pytest.fixture
def classroom(tmp_path):
    for name, solved in (("ada", ["01", "04"]), ("bob", ["04"])):
        for number in solved:
            (tmp_path / "class" / name).mkdir(parents=True, exist_ok=True)
            solve(tmp_path / "class" / name, number)
    (tmp_path / "class" / "notes.txt").write_text("not a student")
    file_of(tmp_path / "class" / "bob", "01").write_text("import os\nos._exit(0)\n")
    return tmp_path / "class"


def test_a_class_gets_scores_that_depend_on_files_and_seed_alone(classroom, tmp_path):
    hidden = tmp_path / "hidden.toml"
    hidden.write_text("seed = 7\ndraws = 2\n[warp_sum_rotation]\ndraws = 3\n")
    outputs = []
    for name in ("one", "two"):
        done = run("grade", classroom, "--output", tmp_path / name, "--hidden", hidden, "--seed", 3)
        assert done.exit_code == 0, done.stderr
        outputs.append({path.name: path.read_bytes() for path in (tmp_path / name).rglob("*.*")})
    assert outputs[0] == outputs[1]
    assert "ada: 18 of " in done.stdout

    scores = json.loads(outputs[0]["scores.json"])
    assert scores["seed"] == 3
    ada, bob = scores["students"]
    assert (ada["points"], bob["points"]) == (18, 10)
    assert ada["possible"] == bob["possible"]
    assert bob["exercises"]["01_welford_step"]["failure"]["kind"] == "import"
    assert bob["exercises"]["02_chan_merge"]["failure"]["kind"] == "missing"
    assert ada["exercises"]["04_warp_sum_rotation"]["parts"] == {"right": 6, "budgets": 2, "hidden": 2}

    rows = list(csv.DictReader(outputs[0]["scores.csv"].decode().splitlines()))
    assert [row["student"] for row in rows] == ["ada", "bob"]
    assert (rows[0]["01_welford_step"], rows[1]["01_welford_step"]) == ("8", "0")

    page = json.loads(outputs[0]["bob.json"])
    assert page["score"] == 10 == sum(test["score"] for test in page["tests"])
    assert sum(test["max_score"] for test in page["tests"]) == bob["possible"]
    by_name = {test["name"]: test for test in page["tests"]}
    secret = by_name["04 32 lanes, one sum: the rotation: hidden checks"]
    assert (secret["visibility"], secret["status"], secret["score"]) == ("hidden", "passed", 2)
    assert "imports os" in by_name["01 One more value: Welford's step"]["output"]


def test_one_student_s_folder_is_a_class_of_one(classroom, tmp_path):
    assert run("grade", classroom / "ada", "--output", tmp_path / "out").exit_code == 0
    assert [path.name for path in (tmp_path / "out" / "results").iterdir()] == ["ada.json"]


def test_a_folder_without_students_is_refused(tmp_path):
    done = run("grade", tmp_path)
    assert (done.exit_code, "has no folder with a file such as 01_welford_step.py" in done.stderr) == (2, True)
