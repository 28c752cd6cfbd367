"""Write down what a class reached: CSV, JSON, one HTML page, and a results.json for each student, for Gradescope.

The scores depend only on the files, the seed and the hidden checks. They contain no times and no dates.
"""

import csv
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from normlab.course import catalogue, overview, page
from normlab.course.failure import Failure, told
from normlab.course.grading import POINTS, Result
from normlab.course.overview import Student

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet takes a cell that begins so for a formula


def write(graded: list[Student], output: Path, seed: int, ranked: bool = False) -> list[Path]:
    """Write scores.json, scores.csv, class.html and results/NAME.json; return the paths of the written files.

    ranked: add rankings by cost to class.html and scores.json.
    """
    (output / "results").mkdir(parents=True, exist_ok=True)
    found = {"seed": seed, "students": [_scores(student) for student in graded]} | _of_the_class(graded, ranked)
    scores, table, html = output / "scores.json", output / "scores.csv", output / "class.html"
    scores.write_text(_json(found), encoding="utf-8")
    with table.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows(_rows(graded))
    html.write_text(page.page(graded, seed, ranked), encoding="utf-8")
    results = [output / "results" / f"{student.name}.json" for student in graded]
    for student, path in zip(graded, results, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)  # "section/student" lies in a folder
        path.write_text(_json(gradescope(student)), encoding="utf-8")
    return [scores, table, html, *results]


def _rows(graded: list[Student]) -> list[list[Any]]:
    """Return the rows of scores.csv."""
    columns = [path.stem for path in catalogue.FILES.values()]
    rows: list[list[Any]] = [["student", "points", "possible", *columns, "stuck_at", "because"]]
    for student in graded:
        points = [result.points for result in student.results]
        stuck = student.stuck_at
        why = [catalogue.FILES[stuck.number].stem, overview.failures(stuck)[0][0].headline] if stuck else ["", ""]
        rows.append([_cell(student.name), student.points, student.possible, *points, *map(_cell, why)])
    return rows


def _cell(text: str) -> str:
    """Return text that no spreadsheet takes for a formula: names of folders and messages come from students."""
    return f"'{text}" if text.startswith(FORMULA) else text


def _of_the_class(graded: list[Student], ranked: bool) -> dict[str, Any]:
    """Return what scores.json says of the class as a whole."""
    exercises = [
        {
            "exercise": catalogue.FILES[one.number].stem,
            "states": {state: len(names) for state, names in one.states.items()},
        }
        for one in overview.summaries(graded)
    ]
    common = [asdict(one) for one in overview.mistakes(graded)]
    rankings = {
        catalogue.FILES[number].stem: [
            {"rank": place.rank, "students": place.names} | place.cost._asdict() for place in places
        ]
        for number, places in overview.rankings(graded).items()
    }
    return {"exercises": exercises, "mistakes": common} | ({"rankings": rankings} if ranked else {})


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _scores(student: Student) -> dict[str, Any]:
    return {
        "student": student.name,
        "points": student.points,
        "possible": student.possible,
        "remarks": student.remarks,
        "exercises": {
            f"{result.number}_{result.name}": {
                "points": result.points,
                "possible": result.possible,
                "parts": result.parts,
                "state": overview.state(result),
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
    remarks = {"output": "\n".join(student.remarks)} if student.remarks else {}
    return {"score": student.points, "visibility": "visible", "tests": tests} | remarks


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
