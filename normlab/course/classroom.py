"""Grade a class: a folder for each student. `gradebook` writes the scores down, and `overview` sums them up."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from normlab.course import catalogue, folder, grading, handed_in, process
from normlab.course.failure import Failure
from normlab.course.grading import Result
from normlab.course.hidden import Hidden
from normlab.course.overview import Student

ARCHIVES = (".7z", ".rar", ".tar", ".tgz", ".gz", ".xz", ".bz2")  # not looked into


def students(classroom: Path, output: Path, one: bool = False) -> dict[str, Path]:
    """Return the folders to grade by the students' names, sorted by name. Raise ValueError if none has an exercise.

    If `classroom` has exercises itself, or if it is said to be `one` student's, it is the only one. Otherwise its
    folders and zips are the students', except `output`, scores of other gradings and hidden folders. A folder of
    sections is searched, too: a student of it is named "section/student". But a folder in which only one folder has
    exercises is one student's, however deep the exercises lie.
    """
    if one or folder.is_course(classroom):
        classroom.stat()  # an error, if there is none
        return {_printable(classroom.resolve().name): classroom}
    found = _below(classroom, output.resolve())
    if not any(map(handed_in.is_handed_in, found.values())):
        raise ValueError(f"{classroom} has no folder with a file such as {next(iter(catalogue.FILES.values())).name}")
    return dict(sorted(found.items()))


def _below(parent: Path, output: Path) -> dict[str, Path]:
    """Return the students' folders below a folder that is not one itself, with their names."""
    found: dict[str, Path] = {}
    for path in sorted(parent.iterdir()):
        if path.name.startswith((".", "__")) or path.resolve() == output or _is_scores(path):
            continue
        if path.is_file() and path.suffix.lower() == ".zip":
            found[_unused(_printable(path.stem), found)] = path
        if not path.is_dir():
            continue
        name, below = _printable(path.name), {}
        if not folder.is_course(path) and os.access(path, os.R_OK | os.X_OK) and not path.is_symlink():
            below = _below(path, output)
        courses = [one for one in below.values() if folder.is_course(one)]
        if len(courses) > 1:
            found |= {f"{name}/{one}": where for one, where in below.items()}
        else:
            beside = [one for one in below.values() if one not in courses]
            alone = courses and not any(map(handed_in.is_handed_in, beside)) and not _loose(path)
            found[_unused(name, found)] = courses[0] if alone else path
    return found


def _is_scores(path: Path) -> bool:
    """Return True if a folder has what `gradebook` writes, or is its "results", and no student's exercises."""
    output = path.parent if path.name == "results" else path
    written = (output / "scores.json").is_file() and (output / "results").is_dir()
    return written and not handed_in.is_handed_in(path)


def left_out(classroom: Path, folders: dict[str, Path]) -> list[str]:
    """Return the exercises and archives that lie beside the students' folders and zips, so that no student has them."""
    parents = {classroom, *(above for path in folders.values() for above in path.parents if classroom in above.parents)}
    within = [parent for parent in parents - {*folders.values()} if parent.is_dir()]
    return sorted(_printable(one.relative_to(classroom).as_posix()) for parent in within for one in _loose(parent))


def _loose(parent: Path) -> list[Path]:
    """Return the exercises and the archives other than zips that lie in a folder itself."""
    return [one for one in parent.iterdir() if handed_in.exercise_of(one.name) or one.name.lower().endswith(ARCHIVES)]


def _unused(name: str, found: dict[str, Path]) -> str:
    """Return `name`, numbered if `found` has it: folders may differ only in characters that `_printable` replaces."""
    numbered = (f"{name} ({number})" for number in count(2))
    return name if name not in found else next(one for one in numbered if one not in found)


def _printable(name: str) -> str:
    """Return a name for terminals and file names: U+FFFD replaces control characters and bytes that are no text."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in name)


class _Once:
    """Grades files, equal ones only once: a class has many copies of what was handed out, and some of each other's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], Future[Result]] = {}

    def __call__(self, number: str, source: str, file: str, **how: Any) -> Result:
        """Return the result of `grading.check`, or of an equal file. `how` is the same for the whole class."""
        key = number, source
        with self._lock:
            mine = key not in self._known
            result = self._known.setdefault(key, Future())
        if mine:
            result.set_result(_check(number, source, file, **how))
        return result.result()


def _check(number: str, source: str, file: str, **how: Any) -> Result:
    """Grade a file. An error in the grader itself becomes a failure in the report, and does not end the grading."""
    try:
        return grading.check(number, source, file, **how)
    except Exception as error:
        parts = {"right": 0, "budgets": 0} | ({"hidden": 0} if how.get("hidden") else {})
        failure = Failure("grader", f"the grader itself stopped at this file ({type(error).__name__}: {error})")
        exercise = catalogue.exercise(number)
        return Result(number, exercise.name, exercise.title, parts, failure)


def grade(
    folders: dict[str, Path],
    seed: int,
    hidden: Hidden | None,
    jobs: int | None = None,
    advance: Callable[[], None] = lambda: None,
) -> list[Student]:
    """Grade the students' folders or zips, and return the results in their order.

    jobs: how many solutions run at a time, by default one per processor. advance: called after each exercise. The
    solutions' processes do almost all of the work, so threads of one grader suffice to keep the processors busy.
    """
    if len(folders) > 1:  # one student's solutions do not repay it: all 35, right ones, took 4 s longer on two cores
        process.prepare_for_a_class()
    once = _Once()
    with TemporaryDirectory(prefix="normlab-") as temporary:
        clean = {name: Path(temporary, str(number)) for number, name in enumerate(folders)}
        remarks = {name: handed_in.lay_out(path, clean[name]) for name, path in folders.items()}
        return [replace(one, remarks=remarks[one.name]) for one in _graded(clean, once, seed, hidden, jobs, advance)]


def _graded(
    folders: dict[str, Path],
    once: _Once,
    seed: int,
    hidden: Hidden | None,
    jobs: int | None,
    advance: Callable[[], None],
) -> list[Student]:
    """Grade folders that have the exercises' files under their own names."""

    def graded(path: Path, number: str) -> Result:
        result = folder.graded(path, number, by=once, seed=seed, hidden=hidden)
        advance()
        return result

    with ThreadPoolExecutor(jobs or os.cpu_count() or 1) as threads:
        asked = {
            name: [threads.submit(graded, path, number) for number in catalogue.FILES] for name, path in folders.items()
        }
        try:
            return [Student(name, [one.result() for one in results]) for name, results in asked.items()]
        except BaseException:  # Ctrl-C
            threads.shutdown(wait=False, cancel_futures=True)
            raise
