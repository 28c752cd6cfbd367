"""Attacks on the grader, each written as by someone who has read it: none reads, writes or changes what is not its own.

The rules for a source (`rules`) refuse every one of them. What holds behind the rules is tried without them.
"""

import gc
import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from course.solved import WRONG

import normlab
from normlab.course import catalogue, grading, process, reference, rules, wall
from normlab.course.process import Limits, StoppedError

NUMBER = catalogue.number_of("warp_sum_rotation")
RIGHT = reference.source(NUMBER)
(LAZY,) = (one.source for one in WRONG if str(one) == "warp_sum_rotation/four_steps")
MODULES = (
    *("numbers", "copy", "numpy", "string", "random", "numba", "json", "matplotlib", "typing", "multiprocessing"),
    *("signal", "rich", "linecache"),
)
SHADOWS = (*MODULES, "conftest", "sitecustomize", "usercustomize", "solution", "__main__")


@pytest.fixture
def lawless(monkeypatch):
    """Take the rules away."""
    monkeypatch.setattr(rules, "broken", lambda source, skeleton: None)


def attacked(lines, solution=RIGHT, patience=20.0):
    """Grade a solution with lines of an attack above it."""
    source = solution.replace("from normlab.engine import cuda\n", f"from normlab.engine import cuda\n{lines}\n")
    return grading.check(NUMBER, source, "/nowhere/solution.py", limits=Limits(patience=patience))


# ---- files beside the solution that have the names of modules


@pytest.fixture
def shadows(tmp_path):
    """Make a student's folder with a right solution and files that would stand in for modules; and name their deeds."""
    folder, deeds = tmp_path / "class" / "eve", tmp_path / "deeds.txt"
    (folder / "normlab").mkdir(parents=True)
    evil = f"open({str(deeds)!r}, 'a').write(__name__ + '\\n')\nraise ImportError('evil')\n"
    for name in SHADOWS:
        (folder / f"{name}.py").write_text(evil)
    (folder / "normlab" / "__init__.py").write_text(evil)
    (folder / catalogue.file(NUMBER).name).write_text(RIGHT)
    return folder, deeds


@pytest.mark.parametrize(
    ("notebook", "arguments"),
    [(True, ["check", NUMBER]), (False, ["grade", "..", "--output", "../../scores"])],
    ids=["checked as in a notebook", "graded as by a command"],
)
def test_files_with_names_of_modules_are_not_imported(shadows, tmp_path, notebook, arguments):
    """A notebook has the current folder on its path, but the process of a solution does not.

    (In a notebook such a file shadows what is not imported yet. This one has imported all of it before.)
    """
    folder, deeds = shadows
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "normlab"
    here = f"import {', '.join(MODULES)}\nsys.path.insert(0, '')\n" if notebook else ""
    command.write_text(f"import sys\nfrom normlab.cli import app\n{here}if __name__ == '__main__':\n    app()\n")
    environment = {**os.environ, "PYTHONPATH": str(Path(normlab.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, str(command), "course", *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert not deeds.exists(), deeds.read_text()
    if not notebook:
        (student,) = json.loads((tmp_path / "scores" / "scores.json").read_text())["students"]
        assert student["exercises"][catalogue.file(NUMBER).stem]["points"] == 8


# ---- what a file may not do to files, processes and the network


ACTS = {
    "reads the hidden file": "open({secret!r}).read()",
    "reads it by a descriptor": "import os\nos.open({secret!r}, os.O_RDONLY)",
    "reads it by NumPy": "import numpy\nnumpy.fromfile({secret!r})",
    "reads it by pathlib": "import pathlib\npathlib.Path({secret!r}).read_text()",
    "lists its folder": "import os\nos.listdir({folder!r})",
    "writes scores": "open({scores!r}, 'w').write('{{}}')",
    "adds to scores": "open({scores!r}, 'a').write('{{}}')",
    "removes scores": "import os\nos.remove({scores!r})",
    "renames scores": "import os\nos.rename({scores!r}, {secret!r})",
    "shortens scores": "import os\nos.truncate({scores!r}, 0)",
    "links scores": "import os\nos.symlink({secret!r}, {scores!r} + '.link')",
    "makes a database": "import sqlite3\nsqlite3.connect({scores!r} + '.db').execute('create table t (x)')",
    "dates scores back": "import os\nos.utime({scores!r}, (0, 0))",
    "changes normlab": "open({normlab!r}, 'a').write('x = 1')",
    "starts a shell": "import os\nos.system('true')",
    "starts a process": "import subprocess\nsubprocess.run(['true'])",
    "starts a program of Windows": "import sys\nsys.audit('os.startfile', 'x', 'open')",
    "forks": "import os\nos.fork()",
    "becomes another program": "import os\nos.execv('/bin/true', ['true'])",
    "kills the grader": "import os\nos.kill(os.getppid(), 9)",
    "opens a socket": "import socket\nsocket.socket()",
    "loads a library": "import ctypes\nctypes.CDLL(None)",
    "lifts its limits": "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
}


@pytest.fixture
def treasure(tmp_path):
    """The paths of a hidden file, of scores and of a copy of a file of normlab, and what must still be in them.

    It is a copy because where the wall has a hole, nothing of the checkout must be written to.
    """
    held = {"hidden.toml": "seed = 4711\n", "scores.json": "[]\n", "__init__.py": Path(normlab.__file__).read_text()}
    for name, text in held.items():
        (tmp_path / name).write_text(text)
    names = {"secret": "hidden.toml", "scores": "scores.json", "normlab": "__init__.py"}
    yield {"folder": str(tmp_path)} | {word: str(tmp_path / name) for word, name in names.items()}
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == held


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_an_act_is_refused_by_the_rules_and_by_the_wall_behind_them(act, treasure, monkeypatch):
    lines = act.format(**treasure)
    failure = attacked(lines).failure
    assert (failure.kind, failure.line is not None) in (("import", True), ("outside", True)), failure
    monkeypatch.setattr(rules, "broken", lambda source, skeleton: None)
    failure = attacked(lines).failure
    assert (failure.kind, failure.headline.startswith("PermissionError: a solution has no use for")) == (
        "exception",
        True,
    ), failure


def test_the_wall_stands_in_a_kernel_too(lawless, treasure):
    lines = f"    open({treasure['secret']!r})\n    for level"
    failure = attacked("", RIGHT.replace("    for level", lines)).failure
    assert failure.headline == f"PermissionError: a solution has no use for the file {treasure['secret']!r}"
    assert failure.line is not None


def test_without_the_wall_the_hidden_file_could_be_read(lawless, treasure, monkeypatch):
    """So the tests above can fail."""
    monkeypatch.setattr(wall, "build", lambda: nullcontext)
    monkeypatch.setattr(process, "_context", lambda: process.multiprocessing.get_context("fork"))
    assert attacked(ACTS["reads the hidden file"].format(**treasure)).failure is None


# ---- what a file finds in its process


SEARCHES = {
    "among all objects": "[one for held in gc.get_objects() for one in gc.get_referents(held) "
    "if isinstance(one, np.ndarray)]",
    "in the frames": "[one for frame in frames() for one in frame.f_locals.values() if isinstance(one, np.ndarray)]",
    "in the frames' containers": "[one for frame in frames() for held in frame.f_locals.values() "
    "if isinstance(held, dict) for one in held.values() if isinstance(one, np.ndarray)]",
    "among the grader's classes": "[one for one in gc.get_objects() if type(one).__name__ in ('Answer', 'Case')]",
}
SEARCH = """\
import gc, sys
import numpy as np
gc.unfreeze()
def frames():
    frame = sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back
def search():
    for one in {search}:
        assert type(one).__module__.split('.')[0] == 'numpy', 'found ' + repr(one)
        if type(one) is np.ndarray and one.dtype == np.float64 and one.size and one.flat[0] == 64 * 12345.0:
            raise AssertionError('found the truth')
"""


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
@pytest.mark.parametrize("start", ["forkserver", "fork"])
def test_right_answers_are_not_in_the_solution_s_process(search, start, monkeypatch):
    """A process that is forked from the grader would have them: there the search finds something."""
    if start == "fork" and "f_locals" in search:
        pytest.skip("a forked process has other frames, those of the worker")
    if start == "fork":
        monkeypatch.setattr(process, "_context", lambda: process.multiprocessing.get_context("fork"))
    truth = np.full((1, 32), 64 * 12345.0)
    case = process.Case([process.Launch("copy", 1, 32, ("x", "y"))], {"x": truth.astype(np.float32)}, {})
    case.arrays["y"] = np.zeros_like(case.arrays["x"])
    held = [truth, case] if start == "fork" else [truth]
    source = SEARCH.format(search=search) + (
        "from normlab.engine import cuda\n@cuda.jit\ndef copy(x, y):\n"
        "    i = cuda.grid(1)\n    if i == 0:\n        search()\n    y[0, i] = x[0, i]\n"
    )
    gc.collect()
    limits = process.Limits(seconds=60, altogether=60, patience=120)  # a process with PyTorch in it has many objects
    with process.Solution(source, "/nowhere/solution.py", limits) as solution:
        if start == "fork":
            with pytest.raises(StoppedError, match="found"):
                solution.run(case, "sanitize")
        else:
            assert solution.run(case, "sanitize").observed["findings"] == []
    assert held


# ---- what a file changes in its process


PATCHES = {
    "the comparator": "from normlab.course import grading, failure\ngrading._differs = lambda *_: None\n"
    "failure.wrong_value = lambda *_: None",
    "the oracle": "import numpy as np\nfrom normlab import oracle\n"
    "oracle.product = lambda a, b: np.zeros((len(a), 1))\n"
    "oracle.product_bound = lambda a, b: np.full((len(a), 1), np.inf)",
    "the exercise": "from normlab.course import catalogue\ncatalogue.exercise = None\ncatalogue.FILES.clear()",
    "the points": "from normlab.course import grading\ngrading.POINTS.update(right=0)\ngrading.Result.points = 8",
    "NumPy": "import numpy as np\nnp.argwhere = lambda _: []\nnp.array_equal = lambda *_: True",
}


@pytest.mark.parametrize("patch", PATCHES.values(), ids=PATCHES)
def test_a_patched_grader_is_not_the_one_that_grades(lawless, patch):
    result = attacked(patch, LAZY)
    assert (result.failure.kind, result.points) == ("values", 0)
    later = grading.check(NUMBER, RIGHT, "/nowhere/later.py")
    assert (later.failure, later.points) == (None, 8)


WRITES = (
    "import os, time\nfor number in range(3, 64):\n    try:\n        os.write(number, {bytes})\n    except OSError:\n"
    "        pass\nwhile True:\n    time.sleep(1)"
)
ENDS = {
    "leaves with success": "import os\nos._exit(0)",
    "closes all files": "import os\nos.closerange(0, 4096)",
    "closes the grader's pipe": "import gc\nfrom multiprocessing.connection import Connection\ngc.unfreeze()\n"
    "[one.close() for one in gc.get_objects() if isinstance(one, Connection)]",
    "writes to every file": WRITES.format(bytes=b"\xff" * 99),
    "sends a part of a message": WRITES.format(bytes=b"\0\0\x10\0"),
    "leaves at the end": "import atexit, os\natexit.register(os._exit, 0)\nraise SystemExit",
}


@pytest.mark.parametrize("act", ENDS.values(), ids=ENDS)
def test_an_end_of_its_process_is_no_result_and_later_exercises_are_graded(lawless, act):
    result = attacked(act, patience=2.0)
    assert result.failure.kind in ("ended", "exit", "time"), result.failure
    assert result.points == 0
    later = grading.check(NUMBER, RIGHT, "/nowhere/later.py")
    assert (later.failure, later.points) == (None, 8)


def test_nothing_of_a_file_lives_on(lawless, tmp_path):
    """Threads, exit handlers and destructors end with the process, which is killed."""
    deed = tmp_path / "deed.txt"
    lines = f"""
import atexit, os, threading, time
atexit.register(open, {str(deed)!r}, 'w')
class Last:
    def __del__(self):
        open({str(deed)!r}, 'w')
last = Last()
def loop():
    while True:
        time.sleep(0.01)
threading.Thread(target=loop).start()
print('process', os.getpid())
"""
    with process.Solution(lines + RIGHT, "/nowhere/solution.py") as solution:
        pid = int(solution.printed.split()[1])
        os.kill(pid, 0)
    time.sleep(0.1)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not deed.exists()


def test_lines_that_look_like_the_grader_s_are_only_printed(lawless):
    lines = "print('{\"costs\": [], \"findings\": []}')\nprint('right 6, budgets 2')"
    assert attacked(lines, LAZY).points == 0
