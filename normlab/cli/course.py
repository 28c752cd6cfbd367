"""`normlab course`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from normlab.course.grading import Result
    from normlab.course.hidden import Hidden

course = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Folder = Annotated[Path, typer.Option("--dir", metavar="DIR", help="The folder with the exercises.")]
Seed = Annotated[int, typer.Option(min=0, help="Of the drawn inputs; the same seed draws the same.")]
HiddenFile = Annotated[
    Path | None,
    typer.Option("--hidden", metavar="FILE", show_default=False, help="More checks, from an instructor's TOML file."),
]
Number = Annotated[str, typer.Argument(metavar="NN", help="An exercise: 3, 03 or its name.")]


@course.callback()
def about() -> None:
    """Exercises from one value to whole kernels, checked on any laptop: what is wrong, where, and for which input."""


@course.command(short_help="Lay the exercises out in a folder.")
def start(folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to; made if it is not there.")]) -> None:
    """Lay the exercises out, a file each. What is there already stays as it is."""
    from normlab.course import folder as student

    try:
        written, kept = student.start(folder)
    except OSError as error:
        raise _refused("start", f"cannot write to {folder}: {error.strerror}") from None
    stays = f"; {len(kept)} that were there stay as they are" if kept else ""
    typer.echo(f"{len(written)} exercises laid out in {folder}{stays}.")
    typer.echo(f"Open {folder / (written or kept)[0]}, read it, write your lines; then, in {folder}:")
    typer.echo("  normlab course check 1     what is wrong, where, and for which input")
    typer.echo("  normlab course hint 1      a hint, and each time another one")
    typer.echo("  normlab course progress    what is left")
    typer.echo("What stands under if __name__ == '__main__': is yours, to try things out.")


@course.command(short_help="Grade one exercise, or all that are begun.")
def check(
    number: Annotated[str | None, typer.Argument(metavar="[NN]", show_default=False, help="3, 03 or its name.")] = None,
    folder: Folder = Path(),
    show: Annotated[
        bool, typer.Option("--show", help="Draw what the kernel does, into a PNG beside the file.")
    ] = False,
    seed: Seed = 0,
    hidden: HiddenFile = None,
) -> None:
    """Grade one exercise, or all that are begun: its results on drawn inputs, races and the like, its budgets.

    Exit code: 0 if all that was checked passes, 1 if not, 2 when the arguments cannot be used.
    """
    from normlab.course import catalogue
    from normlab.course import folder as student

    numbers = [_number("check", number)] if number else _begun(folder)
    extra = _hidden("check", hidden)
    results = []
    for one in numbers:
        _need("check", folder, one)
        results.append(student.graded(folder, one, seed=seed, hidden=extra, show=show))
        student.remember(folder, results[-1])
        _tell(results[-1], folder)
    if not numbers:
        typer.echo(f"nothing is begun yet: the first exercise is {catalogue.FILES['01'].name}")
    raise typer.Exit(0 if all(result.passed and not result.hidden_failure for result in results) else 1)


@course.command(short_help="A hint, and each time another one.")
def hint(number: Number, folder: Folder = Path()) -> None:
    """Give one hint; the next time the next one."""
    from normlab.course import folder as student

    one = _number("hint", number)
    _need("hint", folder, one)
    count, of, text = student.next_hint(folder, one)
    typer.echo(f"{count} of {of}: {text}")


@course.command(short_help="What is solved, what is left.")
def progress(folder: Folder = Path()) -> None:
    """Show a table of the exercises: what is solved, what is left. Nothing is run."""
    from rich.console import Console
    from rich.table import Table

    from normlab.course import folder as student

    rows = student.progress(folder)
    if all(row.state == "missing" for row in rows):
        raise _refused(
            "progress", f"there are no exercises in {folder.absolute()}: begin with normlab course start DIR"
        )
    marks = {"solved": "✓", "changed": "?"}
    table = Table(box=None, pad_edge=False)
    for head in ("", "", "exercise", "", "hints"):
        table.add_column(head)
    for row in rows:
        words = "changed since it was solved" if row.state == "changed" else row.state
        hints = f"{row.hints} of {row.all_hints}" if row.hints else ""
        table.add_row(marks.get(row.state, ""), row.number, row.title, words, hints)
    Console().print(table)
    solved = sum(row.state == "solved" for row in rows)
    left = next((row for row in rows if row.state != "solved"), None)
    typer.echo(f"{solved} of {len(rows)} solved" + (f"; next: normlab course check {int(left.number)}" if left else ""))


@course.command(short_help="For instructors: grade a folder of students.")
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

    extra = _hidden("grade", hidden)
    graded = []
    try:
        for student in room.grade(room.students(classroom, output), seed, extra):
            graded.append(student)
            typer.echo(f"{student.name}: {student.points} of {student.possible} points")
        pages = room.write(graded, output, seed)
    except (OSError, ValueError) as error:
        raise _refused("grade", str(error)) from None
    typer.echo(f"wrote {pages[0]}, {pages[1].name} and {len(graded)} files in {pages[-1].parent.name}/")


def _refused(command: str, text: str) -> typer.Exit:
    typer.echo(f"normlab course {command}: {text}", err=True)
    return typer.Exit(2)


def _number(command: str, asked: str) -> str:
    from normlab.course import catalogue

    try:
        return catalogue.number_of(asked)
    except ValueError as error:
        raise _refused(command, str(error)) from None


def _hidden(command: str, path: Path | None) -> "Hidden | None":
    from normlab.course.hidden import read

    if path is None:
        return None
    try:
        return read(path)
    except (OSError, ValueError) as error:
        raise _refused(command, str(error)) from None


def _need(command: str, folder: Path, number: str) -> None:
    """Refuse a folder without the exercise."""
    from normlab.course.folder import file_of

    if not file_of(folder, number).exists():
        raise _refused(
            command,
            f"there is no {file_of(folder, number).name} in {folder.absolute()}: "
            "go to your exercises, or give --dir; normlab course start DIR lays them out",
        )


def _begun(folder: Path) -> list[str]:
    from normlab.course.folder import progress as rows

    states = {row.number: row.state for row in rows(folder)}
    if set(states.values()) == {"missing"}:
        raise _refused("check", f"there are no exercises in {folder.absolute()}: begin with normlab course start DIR")
    return [number for number, state in states.items() if state not in ("missing", "not begun")]


def _tell(result: "Result", folder: Path) -> None:
    """Print a result, and write its picture."""
    from normlab.course.classroom import told
    from normlab.course.folder import file_of

    points = f"{result.points} of {result.possible} points, {result.seconds:.1f} s"
    typer.echo(f"{result.number} {result.title}: {'solved' if result.passed else 'not yet'} ({points})")
    for failure in (result.failure, result.hidden_failure):
        if failure is not None:
            typer.echo("  " + told(failure, file_of(folder, result.number).name).replace("\n", "\n  "))
    if result.failure is not None:
        typer.echo(f"  a hint: normlab course hint {int(result.number)}")
    if result.picture is not None:
        path = file_of(folder, result.number).with_suffix(".png")
        path.write_bytes(result.picture)
        typer.echo(f"  drawn: {path}")
    elif result.no_picture is not None:
        typer.echo(f"  no picture of it: {result.no_picture}")
