"""Grade a class: a folder for each student, scores as JSON and CSV, and a results.json in Gradescope's format.

The scores depend only on the files, the seed and the hidden checks. They contain no times and no dates.
"""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normlab.course import catalogue, folder
from normlab.course.failure import Failure
from normlab.course.grading import POINTS, Result
from normlab.course.hidden import Hidden


@dataclass(frozen=True)
class Student:
    """One student's results, in the exercises' order."""

    name: str
    results: list[Result]

    @property
    def points(self) -> int:
        """Return the points reached."""
        return sum(result.points for result in self.results)

    @property
    def possible(self) -> int:
        """Return the points that could be reached."""
        return sum(result.possible for result in self.results)


def students(classroom: Path, output: Path) -> list[Path]:
    """Return the folders to grade: `classroom` if it has exercises, else its folders except `output`, sorted by name.

    Raise ValueError if no folder has an exercise.
    """
    if folder.is_course(classroom):
        return [classroom]
    found = sorted(path for path in classroom.iterdir() if path.is_dir() and not path.name.startswith("."))
    found = [path for path in found if path.resolve() != output.resolve()]
    if not any(map(folder.is_course, found)):
        raise ValueError(f"{classroom} has no folder with a file such as {next(iter(catalogue.FILES.values())).name}")
    return found


def grade(paths: list[Path], seed: int, hidden: Hidden | None) -> Iterator[Student]:
    """Grade one folder after another, and yield each student's results."""
    for path in paths:
        results = [folder.graded(path, number, seed=seed, hidden=hidden) for number in catalogue.FILES]
        yield Student(path.resolve().name, results)


def write(graded: list[Student], output: Path, seed: int) -> list[Path]:
    """Write scores.json, scores.csv and results/NAME.json; return the paths of the written files."""
    (output / "results").mkdir(parents=True, exist_ok=True)
    scores = output / "scores.json"
    scores.write_text(_json({"seed": seed, "students": [_scores(student) for student in graded]}), encoding="utf-8")
    table = output / "scores.csv"
    with table.open("w", newline="", encoding="utf-8") as stream:
        rows = csv.writer(stream)
        rows.writerow(["student", "points", "possible", *(path.stem for path in catalogue.FILES.values())])
        for student in graded:
            points = [result.points for result in student.results]
            rows.writerow([student.name, student.points, student.possible, *points])
    pages = [output / "results" / f"{student.name}.json" for student in graded]
    for student, page in zip(graded, pages, strict=True):
        page.write_text(_json(gradescope(student)), encoding="utf-8")
    return [scores, table, *pages]


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _scores(student: Student) -> dict[str, Any]:
    return {
        "student": student.name,
        "points": student.points,
        "possible": student.possible,
        "exercises": {
            f"{result.number}_{result.name}": {
                "points": result.points,
                "possible": result.possible,
                "parts": result.parts,
                "failure": result.failure and {"kind": result.failure.kind, "text": result.failure.headline},
                "hidden_failure": result.hidden_failure
                and {"kind": result.hidden_failure.kind, "text": result.hidden_failure.headline},
            }
            for result in student.results
        },
    }


def gradescope(student: Student) -> dict[str, Any]:
    """Return the content of a results.json: a test per exercise, and one, hidden from students, for hidden checks."""
    tests = []
    for result in student.results:
        tests.append(_test(result, {"right", "budgets"}, "", result.failure, "visible"))
        if "hidden" in result.parts:
            failure = result.hidden_failure if result.parts["right"] else result.failure
            tests.append(_test(result, {"hidden"}, ": hidden checks", failure, "hidden"))
    return {"score": student.points, "visibility": "visible", "tests": tests}


def _test(result: Result, parts: set[str], which: str, failure: Failure | None, visibility: str) -> dict[str, Any]:
    points = sum(result.parts[part] for part in parts & result.parts.keys())
    possible = sum(POINTS[part] for part in parts & result.parts.keys())
    return {
        "name": f"{result.number} {result.title}{which}",
        "score": points,
        "max_score": possible,
        "status": "passed" if points == possible else "failed",
        "output": told(failure, catalogue.FILES[result.number].name) if failure else "",
        "visibility": visibility,
    }


def told(failure: Failure, file: str) -> str:
    """Return a failure as plain text: its headline, with the line in `file`, then its details."""
    where = f" ({file}:{failure.line})" if failure.line else ""
    return "\n".join([f"{failure.headline}{where}", *(f"  {line}" for line in failure.details)])
