"""`normlab course grade`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normlab.cli.course.arguments import HiddenFile, Seed, hidden_of
from normlab.cli.errors import refusing
from normlab.cli.terminal import say
from normlab.cli.waiting import progress

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from normlab.course.overview import Student

COMMON = 10  # mistakes that are printed
BEST = 3  # places of an exercise that are printed
WIDEST = 72  # characters of a message that are printed


def grade(
    classroom: Annotated[
        Path, typer.Argument(metavar="CLASSDIR", help="A folder of students' folders or zips, or one student's.")
    ],
    output: Annotated[Path, typer.Option(metavar="DIR", help="Where the scores are written.")] = Path("scores"),
    seed: Seed = 0,
    hidden: HiddenFile = None,
    ranking: Annotated[bool, typer.Option("--ranking", help="Rank the solved exercises by counted cost, too.")] = False,
    one: Annotated[bool, typer.Option("--one", help="CLASSDIR is what one student handed in.")] = False,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, show_default=False, help="Files graded at a time; one per processor if not given."),
    ] = None,
) -> None:
    """Grade a class: who is stuck where, common mistakes; scores.csv, scores.json, class.html, and results/NAME.json.

    The last are in Gradescope's format. The same files, seed and hidden checks give the same scores. Exit code: 0, or 2
    when the arguments cannot be used.
    """
    from normlab.course import catalogue, gradebook
    from normlab.course import classroom as room
    from normlab.engine.compile.type_names import several

    extra = hidden_of("grade", hidden)
    with refusing("course grade"):
        folders = room.students(classroom, output, one)
        with progress(len(folders) * len(catalogue.FILES), f"grading {several(len(folders), 'student')}") as advance:
            graded = room.grade(folders, seed, extra, jobs, advance)
        pages = gradebook.write(graded, output, seed, ranking)
    parts = [_exercises(graded), _students(graded), _mistakes(graded), *([_ranking(graded)] if ranking else [])]
    say(*(line for part in parts for line in (part, "")))
    if outside := room.left_out(classroom, folders):
        typer.echo(f"left out, because a student is a folder or a zip: {', '.join(outside)}\n")
    typer.echo(f"wrote {', '.join(map(str, pages[:3]))} and {several(len(graded), 'file')} in {output / 'results'}")


def _table(title: str, *columns: str) -> "Table":
    """Return an empty table. A column whose name begins with # has numbers."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in columns:
        table.add_column(name.removeprefix("#"), justify="right" if name.startswith("#") else "left", overflow="fold")
    return table


def _cut(text: str) -> "Text":
    """Return the beginning of a long text, so that a row stays a line; the written files have the whole."""
    from rich.text import Text

    short = text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"
    return Text("".join(letter if letter.isprintable() else "\ufffd" for letter in short))  # no control characters


def _exercises(graded: "list[Student]") -> "Table":
    """Return the table of exercises: how many students are in each state."""
    from normlab.course import overview

    table = _table("Exercises: how many students are where", "", *(f"#{one}" for one in overview.STATES), "exercise")
    for one in overview.summaries(graded):
        table.add_row(one.number, *(str(len(names) or "") for names in one.states.values()), one.title)
    return table


def _students(graded: "list[Student]") -> "Table":
    """Return the table of students: points, and the exercise where each is stuck."""
    from rich.text import Text

    from normlab.course.overview import failures

    table = _table("Students: where each is stuck", "student", "#points", "#solved", "stuck at", "because")
    for one in graded:
        stuck = one.stuck_at
        where = (stuck.number, _cut(failures(stuck)[0][0].headline)) if stuck else ()
        table.add_row(Text(one.name), f"{one.points} of {one.possible}", str(one.solved), *where)
    return table


def _mistakes(graded: "list[Student]") -> "Table":
    """Return the table of the most common mistakes."""
    from normlab.course import overview

    table = _table("Common mistakes: the same message of how many students", "#students", "at", "kind", "message")
    for one in overview.mistakes(graded)[:COMMON]:
        kind = f"{one.kind}, hidden" if one.hidden else one.kind
        table.add_row(str(len(one.students)), one.number, kind, _cut(one.text))
    return table


def _ranking(graded: "list[Student]") -> "Table":
    """Return the table of the cheapest solutions of each exercise."""
    from normlab.course import overview
    from normlab.course.ranking import METRICS

    table = _table("Ranking by counted cost", "exercise", "#rank", *(f"#{name}" for name in METRICS), "students")
    for number, places in overview.rankings(graded).items():
        for place in places[:BEST]:
            table.add_row(
                number, str(place.rank), *(f"{count:,}" for count in place.cost), _cut(", ".join(place.names))
            )
    return table
