"""`normlab course grade`."""

from pathlib import Path
from typing import Annotated

import typer

from normlab.cli.course.arguments import HiddenFile, Seed, hidden_of
from normlab.cli.errors import refusing
from normlab.cli.waiting import progress


def grade(
    classroom: Annotated[
        Path, typer.Argument(metavar="CLASSDIR", help="A folder of students' folders, or one of these.")
    ],
    output: Annotated[Path, typer.Option(metavar="DIR", help="Where the scores are written.")] = Path("scores"),
    seed: Seed = 0,
    hidden: HiddenFile = None,
) -> None:
    """Grade a class: scores.json, scores.csv, and results/NAME.json as Gradescope reads it.

    The same files, seed and hidden checks give the same scores. Exit code: 0, or 2 when the arguments cannot be used.
    """
    from normlab.course import classroom as room

    extra = hidden_of("grade", hidden)
    graded = []
    with refusing("course grade"):
        students = room.students(classroom, output)
        with progress(len(students), "grading") as advance:
            for student in room.grade(students, seed, extra):
                graded.append(student)
                typer.echo(f"{student.name}: {student.points} of {student.possible} points")
                advance()
        pages = room.write(graded, output, seed)
    typer.echo(f"wrote {pages[0]}, {pages[1].name} and {len(graded)} files in {pages[-1].parent.name}/")
