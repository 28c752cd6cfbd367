"""What students hand in: zips, folders, changed names, and files that are none; each gets a results.json and a word."""

import io
import json
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

import normlab
from normlab.cli import app
from normlab.course import catalogue, handed_in, reference

MAP, SCAN = (catalogue.number_of(name) for name in ("map", "scan_hillis_steele"))
NAME = catalogue.FILES[MAP].name  # 01_map.py
RIGHT = reference.source(MAP).encode()


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("01_map.py", (MAP, 0)),
        ("01_map (1).py", (MAP, 1)),
        ("01_map(12).py", (MAP, 12)),
        ("01_map-2.py", (MAP, 2)),
        ("01_map - Copy.py", (MAP, 1)),
        ("01_map copy 3.py", (MAP, 3)),
        ("22_vector_copy.py", ("22", 0)),
        ("vector_copy copy.py", ("22", 1)),
        ("22_vector_copy (2).py", ("22", 2)),
        ("01_map - Copy (2).py", (MAP, 2)),
        ("01_MAP.PY", (MAP, 0)),
        ("01 map.py", (MAP, 0)),
        ("1_map.py", (MAP, 0)),
        ("map.py", (MAP, 0)),
        ("07_map.py", (MAP, 0)),  # the name counts, not the number
        ("lovelaceada_12345_678910_01_map-1.py", (MAP, 1)),
        ("25_scan_hillis_steele.py", (SCAN, 0)),
        ("03_map_2d.py", (catalogue.number_of("map_2d"), 0)),
        ("my_map.py", None),
        ("01_map.txt", None),
        ("01_map.pyc", None),
        ("numpy.py", None),
        ("(1).py", None),
    ],
)
def test_a_file_is_known_by_its_name_whatever_a_browser_made_of_it(name, found):
    assert handed_in.exercise_of(name) == found


def test_each_exercise_s_own_name_is_known():
    for number, file in catalogue.FILES.items():
        assert handed_in.exercise_of(file.name) == (number, 0)
        assert handed_in.exercise_of(file.name.replace(".py", " copy.py")) == (number, 1)


def zipped(files):
    """Return a zip of files, by name."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return stream.getvalue()


def encrypted(files):
    """Return a zip whose entries are marked as encrypted."""
    content = bytearray(zipped(files))
    for mark, offset in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        content[content.index(mark) + offset] |= 1
    return bytes(content)


def damaged(files):
    """Return a zip with changed bytes in its first entry's content."""
    content = bytearray(zipped(files))
    start = 30 + len(next(iter(files)))
    content[start : start + 40] = bytes(40)
    return bytes(content)


def linked(name, target):
    """Return a zip with a symbolic link."""
    entry = zipfile.ZipInfo(name)
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    return zipped({entry: target})


def laid(tmp_path, files):
    """Lay out a folder of files; return the bytes of the exercise and the remarks."""
    for name, content in files.items():
        path = tmp_path / "submission" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    remarks = handed_in.lay_out(tmp_path / "submission", tmp_path / "clean")
    clean = tmp_path / "clean" / NAME
    return clean.read_bytes() if clean.exists() else None, remarks


ZIP = "homework.zip"


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({NAME: RIGHT}, ""),
        ({f"a/b c/{NAME}": RIGHT}, ""),
        ({"01_map (1).py": RIGHT}, f"{NAME}: 01_map (1).py is graded"),
        ({"01_map (1).py": b"x", "01_map.py": RIGHT}, f"{NAME}: 01_map.py is graded, and not 01_map (1).py"),
        ({"01_map (1).py": b"x", "01_map (2).py": RIGHT}, "01_map (2).py is graded, and not 01_map (1).py"),
        ({NAME: RIGHT, "extra.py": b"", "notes.pdf": b""}, "extra.py is no exercise's file"),
        ({ZIP: zipped({NAME: RIGHT})}, ""),
        ({ZIP: zipped({f"work/week 1/{NAME}": RIGHT})}, ""),
        ({ZIP: zipped({"work\\01_map.py": RIGHT})}, ""),
        ({ZIP: zipped({"inner.zip": zipped({NAME: RIGHT})})}, ""),
        ({ZIP: zipped({NAME: RIGHT, f"__MACOSX/._{NAME}": b"\0", f"._{NAME}": b"\0", ".DS_Store": b""})}, ""),
        ({NAME: RIGHT, "__pycache__/01_map.py": b"x", ".git/01_map.py": b"x"}, ""),
        ({ZIP: zipped({NAME: RIGHT, "numpy.py": b"raise SystemExit"})}, "numpy.py is no exercise's file"),
        ({NAME: RIGHT, "other.zip": b"no zip"}, "other.zip cannot be unpacked"),
        ({NAME: RIGHT, ZIP: zipped({"../../01_map.py": b"x"})}, "leads out of the zip"),
        ({NAME: RIGHT, ZIP: zipped({"/etc/01_map.py": b"x"})}, "leads out of the zip"),
        ({NAME: RIGHT, ZIP: encrypted({"a/01_map.py": b"x"})}, "is encrypted, and cannot be read"),
        ({NAME: RIGHT, ZIP: damaged({"01_map.py": RIGHT})}, "the zip is damaged"),
        ({NAME: RIGHT, ZIP: linked("01_map.py", "/etc/passwd")}, "is no plain file"),
    ],
)
def test_the_right_file_is_found_and_what_is_left_out_is_told(files, says, tmp_path):
    content, remarks = laid(tmp_path, files)
    assert content == RIGHT
    assert says in "\n".join(remarks)
    assert bool(says) == bool(remarks), remarks
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clean", "submission"]  # nothing is unpacked elsewhere


def test_zips_in_zips_end_and_large_files_are_cut(tmp_path):
    deep = zipped({NAME: RIGHT})
    for _ in range(5):
        deep = zipped({ZIP: deep})
    content, remarks = laid(tmp_path, {"deep.zip": deep, "bomb.zip": zipped({NAME: bytes(1 << 24)})})
    assert len(content) == handed_in.LARGEST + 1
    assert any("zips in zips" in remark for remark in remarks)


def test_links_are_not_followed(tmp_path):
    (tmp_path / "secret.py").write_bytes(b"secret")
    (tmp_path / "submission").mkdir()
    os.symlink(tmp_path / "secret.py", tmp_path / "submission" / NAME)
    os.symlink(tmp_path, tmp_path / "submission" / "folder")
    assert laid(tmp_path, {}) == (None, (f"{NAME} is no plain file, and left out",))


# ---- a results.json for each


@pytest.fixture
def only_map(monkeypatch):
    monkeypatch.setattr(catalogue, "FILES", {MAP: catalogue.FILES[MAP]})


def results(tmp_path, submission, *more):
    """Grade what one student handed in; return the results.json."""
    done = CliRunner().invoke(
        app, ["course", "grade", str(submission), "--one", "--output", str(tmp_path / "scores"), *more]
    )
    assert done.exit_code == 0, done.output
    return json.loads((tmp_path / "scores" / "results" / f"{submission.name}.json").read_text())


@pytest.mark.usefixtures("only_map")
@pytest.mark.parametrize(
    ("files", "points", "says"),
    [
        ({}, 0, "there is no 01_map.py"),
        ({"02_other.txt": b"?"}, 0, "there is no 01_map.py"),
        ({"work/01_map (1).py": RIGHT}, 8, ""),
        ({ZIP: zipped({f"work/{NAME}": RIGHT})}, 8, ""),
        ({ZIP: b"PK\3\4 no zip"}, 0, "there is no 01_map.py"),
        ({NAME: b""}, 0, "01_map.py is empty"),
        ({NAME: b"\n \n"}, 0, "01_map.py is empty"),
        ({NAME: RIGHT.decode().encode("utf-16")}, 0, "is no text in UTF-8"),
        ({NAME: RIGHT.replace(b"\n", b"# \xe9\n", 1)}, 0, "is no text in UTF-8"),
        ({NAME: b"\xef\xbb\xbf" + RIGHT.replace(b"\n", b"\r\n")}, 8, ""),
        ({NAME: RIGHT.replace(b"\n", b"\r")}, 8, ""),
        ({NAME: b"#" * 300_000}, 0, "more than 200,000 bytes"),
        ({NAME: RIGHT + b"\0"}, 0, "does not parse"),
        ({NAME: catalogue.skeleton(MAP).encode()}, 0, "nothing is written yet"),
    ],
)
def test_every_submission_gets_a_results_json_with_a_clear_word(files, points, says, tmp_path):
    for name, content in files.items():
        path = tmp_path / "submission" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (tmp_path / "submission").mkdir(exist_ok=True)
    page = results(tmp_path, tmp_path / "submission")
    (test,) = page["tests"]
    assert (page["score"], test["score"]) == (points, points), test
    assert says in test["output"]
    assert bool(says) == bool(test["output"])


@pytest.mark.usefixtures("only_map")
def test_a_class_may_have_zips_and_a_results_json_tells_the_remarks(tmp_path):
    (tmp_path / "class" / "bob").mkdir(parents=True)
    (tmp_path / "class" / "ada.zip").write_bytes(zipped({f"x/{NAME}": RIGHT, "x/extra.py": b""}))
    (tmp_path / "class" / "bob" / "01_map-1.py").write_bytes(RIGHT)
    done = CliRunner().invoke(app, ["course", "grade", str(tmp_path / "class"), "--output", str(tmp_path / "scores")])
    assert done.exit_code == 0, done.output
    ada, bob = (json.loads((tmp_path / "scores" / "results" / f"{name}.json").read_text()) for name in ("ada", "bob"))
    assert (ada["score"], bob["score"]) == (8, 8)
    assert ada["output"] == "ada.zip/x/extra.py is no exercise's file, and left out"
    assert bob["output"] == "01_map.py: 01_map-1.py is graded"


def test_a_zip_s_files_beyond_the_most_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(handed_in, "MOST", 1)
    (tmp_path / "ada.zip").write_bytes(zipped({"a.txt": b"", NAME: RIGHT}))
    assert "ada.zip has more than 1 files: the others are left out" in handed_in.lay_out(
        tmp_path / "ada.zip", tmp_path / "c"
    )


# ---- the script for Gradescope

SCRIPT = Path(__file__).parents[2] / "tutorials" / "gradescope.sh"


@pytest.fixture
def machine(tmp_path):
    """Make a folder like Gradescope's, with a normlab; return it, and a function that runs the script."""
    root = tmp_path / "autograder"
    for name in ("source", "submission/work", "normlab/bin"):
        (root / name).mkdir(parents=True)
    command = root / "normlab" / "bin" / "normlab"
    command.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(Path(normlab.__file__).parents[1])!r})\n"
        f"from pathlib import Path\nfrom normlab.course import catalogue\ncatalogue.FILES = {{{MAP!r}: "
        f"Path({str(catalogue.FILES[MAP])!r})}}\nfrom normlab.cli import app\nif __name__ == '__main__':\n    app()\n"
    )
    command.chmod(0o755)
    shutil.copy(SCRIPT, root / "run_autograder")

    def run():
        done = subprocess.run(
            ["bash", root / "run_autograder"],
            env={"PATH": os.environ["PATH"], "AUTOGRADER": str(root)},
            cwd=root / "submission",
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return json.loads((root / "results" / "results.json").read_text())

    return root, run


@pytest.mark.skipif(shutil.which("bash") is None, reason="the script is for bash")
def test_gradescope_s_script_grades_what_it_finds(machine):
    root, run = machine
    (root / "submission" / "work" / "01_map (1).py").write_bytes(RIGHT)
    (root / "submission" / "numpy.py").write_text("raise SystemExit('evil')")
    (root / "source" / "hidden.toml").write_text("seed = 5\n")
    page = run()
    assert page["score"] == 10
    assert [test["visibility"] for test in page["tests"]] == ["visible", "hidden"]
    assert "numpy.py is no exercise's file" in page["output"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="the script is for bash")
def test_gradescope_s_script_writes_results_even_if_the_grader_stops(machine):
    root, run = machine
    (root / "source" / "hidden.toml").write_text("seed = ?\n")
    assert run() == {"score": 0, "output": "The grader stopped. Please tell your teacher."}
