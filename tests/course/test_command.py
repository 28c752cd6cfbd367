"""`normlab course`, as a student and as an instructor use it."""

import csv
import json
import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from normlab.cli import app
from normlab.course import catalogue, reference
from normlab.course.folder import file_of

NAMES = [path.name for path in catalogue.FILES.values()]


def run(*arguments):
    return CliRunner().invoke(app, ["course", *map(str, arguments)])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the exercises, where the student is."""
    assert run("start", tmp_path / "mine").exit_code == 0
    monkeypatch.chdir(tmp_path / "mine")
    return tmp_path / "mine"


def solve(folder, number):
    file_of(folder, number).write_text(reference.source(number))


def test_start_lays_out_all_exercises_and_keeps_what_is_there(folder):
    assert sorted(path.name for path in folder.iterdir()) == NAMES
    file_of(folder, "09").write_text("mine")
    file_of(folder, "10").unlink()
    done = run("start", folder)
    assert "1 exercises laid out" in done.stdout
    assert f"{len(NAMES) - 1} that were there stay as they are" in done.stdout
    assert file_of(folder, "09").read_text() == "mine"


def test_a_student_s_way(folder):
    done = run("check")
    assert (done.exit_code, done.stdout) == (0, f"nothing is begun yet: the first exercise is {NAMES[0]}\n")
    assert "nothing is written yet" in run("check", 10).stdout
    solve(folder, "10")
    done = run("check", "10")
    assert done.exit_code == 0
    assert done.stdout.startswith("10 32 lanes, one sum: the rotation: solved (8 of 8 points, ")
    file_of(folder, "07").write_text(catalogue.skeleton("07").replace("# Your lines.", "return mean, m2, count"))
    done = run("check")
    assert done.exit_code == 1
    assert "07 One more value: Welford's step: not yet (0 of 8 points" in done.stdout
    assert "a hint: normlab course hint 7" in done.stdout
    assert "10 32 lanes, one sum: the rotation: solved" in done.stdout
    table = run("progress").stdout
    assert f"1 of {len(NAMES)} solved; next: normlab course check {int(NAMES[0][:2])}" in table
    states = {line.split()[-1] for line in table.splitlines() if " begun" in line}
    assert states == {"begun"}
    with file_of(folder, "10").open("a") as file:
        file.write("# more\n")
    assert "changed since it was solved" in run("progress").stdout
    assert f"0 of {len(NAMES)} solved" in run("progress").stdout


def test_a_file_with_the_number_of_an_earlier_version_is_found_by_its_name(folder):
    file_of(folder, "10").rename(folder / "04_warp_sum_rotation.py")
    (folder / "04_warp_sum_rotation.py").write_text(reference.source("10"))
    (folder / ".normlab-course.json").write_text('{"solved": {}, "hints": {"04": 2}}')
    assert "10 32 lanes, one sum: the rotation: solved" in run("check", "04_warp_sum_rotation.py").stdout
    assert "0 exercises laid out" in run("start", folder).stdout
    assert not (folder / "10_warp_sum_rotation.py").exists()
    assert run("hint", "warp_sum_rotation").stdout.startswith("3 of 3")
    assert f"1 of {len(NAMES)} solved" in run("progress").stdout


def test_hints_come_one_at_a_time_and_are_remembered(folder):
    hints = catalogue.exercise("12").hints
    for count, hint in enumerate(hints, 1):
        assert run("hint", "block_sum").stdout == f"{count} of {len(hints)}: {hint}\n"
    assert run("hint", 12).stdout == f"{len(hints)} of {len(hints)}: {hints[-1]}\n"
    assert "3 of 3" in run("progress").stdout
    (folder / ".normlab-course.json").write_text("[")
    assert run("hint", 12).stdout.startswith("1 of 3")


def test_a_picture_on_request(folder):
    solve(folder, "11")
    assert "drawn: 11_warp_sum_butterfly.png" in run("check", 11, "--show").stdout
    assert (folder / "11_warp_sum_butterfly.png").stat().st_size > 10_000
    file = file_of(folder, "11")
    file.write_text(file.read_text().replace("    return value", "    return (value, 0)[2]"))
    assert "no picture of it: IndexError" in run("check", 11, "--show").stdout


def test_windows_line_ends_are_none_of_the_student_s_business(folder):
    file_of(folder, "10").write_bytes(b"\xef\xbb\xbf" + catalogue.skeleton("10").replace("\n", "\r\n").encode())
    assert "nothing is written yet" in run("check", 10).stdout
    solved = reference.source("10")
    file_of(folder, "10").write_bytes(solved.replace("\n", "\r\n").encode())
    assert run("check", 10).exit_code == 0


def test_files_that_are_none_are_graded(folder):
    file_of(folder, "10").unlink()
    file_of(folder, "10").symlink_to(catalogue.file("10"))
    assert "is no plain file" in run("check", 10).stdout
    file_of(folder, "07").write_bytes(b"\xff\xfe")
    file_of(folder, "08").write_bytes(b"#" * 300_000)
    file_of(folder, "09").unlink()
    file_of(folder, "09").mkdir()
    for number, says in (("7", "is no text in UTF-8"), ("8", "more than 200,000"), ("9", "is no plain file")):
        done = run("check", number)
        assert (done.exit_code, says in done.stdout) == (1, True)


@pytest.mark.parametrize("count", ['"a"', "-5", "1.5", pytest.param("[" * 100_000, id="nested")])
def test_a_damaged_memory_is_no_memory(folder, count):
    (folder / ".normlab-course.json").write_text(f'{{"solved": {{}}, "hints": {{"welford_step": {count}}}}}')
    done = run("hint", 7)
    assert (done.exit_code, done.stdout[:4]) == (0, "1 of"), done.output
    assert run("progress").exit_code == 0


def test_a_file_that_cannot_be_read_is_begun_and_a_picture_that_cannot_be_written_is_told(folder, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path != file_of(Path(), "08"))  # root reads everything
    assert re.search(r"08 .* begun", run("progress").stdout)
    solve(folder, "01")
    (folder / "01_map.png").mkdir()
    done = run("check", 1, "--show")
    assert done.exit_code == 0, done.output
    assert "no picture of it: cannot write 01_map.png: Is a directory" in done.stdout
    assert "By an addition" in done.stdout  # the solutions are shown all the same


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["check", "77"], f"there is no exercise '77'; there are {NAMES[0][:2]} to {NAMES[-1][:2]}"),
        (["check", ""], "there is no exercise ''"),
        (["hint", "x"], "there is no exercise 'x'"),
        (["check", "7", "--dir", "/nowhere"], "there is no 07_welford_step.py in /nowhere"),
        (["check", "--dir", "/nowhere"], "there are no exercises in /nowhere"),
        (["progress", "--dir", "/nowhere"], "there are no exercises in /nowhere"),
        (["check", "7", "--hidden", "/nowhere/h.toml"], "no such file"),
        (["grade", "/nowhere"], "no such file"),
        (["start", "/dev/null/x"], "cannot write to /dev/null/x"),
    ],
)
def test_what_cannot_be_done_is_told_with_exit_code_2(folder, arguments, says):
    done = run(*arguments)
    assert done.exit_code == 2
    assert says in done.stderr


def test_a_hidden_case_that_no_solution_can_pass_is_refused_and_costs_nobody_points(folder):
    (folder / "hidden.toml").write_text("[guard]\ncases = [{n = 64}, {n = 65}]\n")  # the launch has 64 threads
    done = run("check", "7", "--hidden", "hidden.toml")
    assert done.exit_code == 2
    assert "hidden [guard]: the reference solution fails the case {'n': 65}: y[64]: expected" in done.stderr


@pytest.fixture
def classroom(tmp_path):
    for name, solved in (("ada", ["07", "10"]), ("bob", ["10"])):
        for number in solved:
            (tmp_path / "class" / name).mkdir(parents=True, exist_ok=True)
            solve(tmp_path / "class" / name, number)
    (tmp_path / "class" / "notes.txt").write_text("not a student")
    file_of(tmp_path / "class" / "bob", "07").write_text("import os\nos._exit(0)\n")
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
    assert re.search(rf"^ada +20 of {10 * len(NAMES)} +2$", done.stdout, re.MULTILINE)
    assert re.search(r"bob +10 of \d+ +1  07 +imports os: ", done.stdout)
    assert "Ranking" not in done.stdout

    scores = json.loads(outputs[0]["scores.json"])
    assert scores["seed"] == 3
    ada, bob = scores["students"]
    assert (ada["points"], bob["points"]) == (20, 10)
    assert ada["possible"] == bob["possible"]
    assert bob["exercises"]["07_welford_step"]["failure"]["kind"] == "import"
    assert bob["exercises"]["08_chan_merge"]["failure"]["kind"] == "missing"
    assert ada["exercises"]["10_warp_sum_rotation"]["parts"] == {"right": 6, "budgets": 2, "hidden": 2}

    rows = list(csv.DictReader(outputs[0]["scores.csv"].decode().splitlines()))
    assert [row["student"] for row in rows] == ["ada", "bob"]
    assert (rows[0]["07_welford_step"], rows[1]["07_welford_step"]) == ("10", "0")
    assert (rows[0]["stuck_at"], rows[1]["stuck_at"]) == ("", "07_welford_step")

    page = json.loads(outputs[0]["bob.json"])
    assert page["score"] == 10 == sum(test["score"] for test in page["tests"])
    assert sum(test["max_score"] for test in page["tests"]) == bob["possible"]
    by_name = {test["name"]: test for test in page["tests"]}
    secret = by_name["10 32 lanes, one sum: the rotation: hidden checks"]
    assert (secret["visibility"], secret["status"], secret["score"]) == ("hidden", "passed", 2)
    assert "imports os" in by_name["07 One more value: Welford's step"]["output"]


def test_a_ranking_on_request(classroom, tmp_path):
    done = run("grade", classroom, "--output", tmp_path / "out", "--ranking", "--jobs", 2)
    assert re.search(r"^10 +1 +\d+ +0 +0 +\d+  ada, bob$", done.stdout, re.MULTILINE)
    scores = json.loads((tmp_path / "out" / "scores.json").read_text())
    assert [place["students"] for place in scores["rankings"]["07_welford_step"]] == [["ada"]]  # bob's is wrong


def test_no_message_of_a_student_s_reaches_the_terminal_s_controls(tmp_path):
    number = catalogue.number_of("welford_step")
    lines = "    assert count < 0, '\\x1b]0;mine\\x07\\n\\x1b[31mred'\n    return mean, m2, count"
    (tmp_path / "ada").mkdir()
    text = catalogue.skeleton(number).replace("    # Your lines.", lines)
    file_of(tmp_path / "ada", number).write_text(text)
    done = run("grade", tmp_path, "--output", tmp_path / "out")
    assert "AssertionError: \ufffd]0;mine\ufffd\ufffd\ufffd[31mred" in done.stdout
    assert not {"\x1b", "\x07"} & set(done.stdout)


def test_half_a_character_in_a_message_stops_no_grading(tmp_path):
    (tmp_path / "ada").mkdir()
    lines = "    print('\\ud800')\n    assert x[0] < 0, '\\udfff'"
    file_of(tmp_path / "ada", "01").write_text(catalogue.skeleton("01").replace("    # Your lines.", lines))
    assert run("grade", tmp_path, "--output", tmp_path / "out").exit_code == 0
    assert "AssertionError" in (tmp_path / "out" / "class.html").read_text(encoding="utf-8")


def test_one_student_s_folder_is_a_class_of_one(classroom, tmp_path):
    done = run("grade", classroom / "ada", "--output", tmp_path / "out")
    assert done.exit_code == 0
    assert re.search(r"and\s1\sfile\sin", done.stdout)
    assert [path.name for path in (tmp_path / "out" / "results").iterdir()] == ["ada.json"]


def test_a_folder_without_students_is_refused(tmp_path):
    done = run("grade", tmp_path)
    assert (done.exit_code, f"has no folder with a file such as {NAMES[0]}" in done.stderr) == (2, True)
