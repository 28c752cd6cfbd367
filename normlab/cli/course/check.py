"""`normlab course check`."""

from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Annotated

import typer

from normlab.cli.completion import exercises
from normlab.cli.course.arguments import Folder, HiddenFile, Seed, hidden_of, need, no_exercises, number_of
from normlab.cli.terminal import say
from normlab.cli.waiting import progress

if TYPE_CHECKING:
    from normlab.course.grading import Result


def check(
    number: Annotated[
        str | None,
        typer.Argument(metavar="[NN]", autocompletion=exercises, show_default=False, help="3, 03 or its name."),
    ] = None,
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

    numbers = _begun(folder) if number is None else [number_of("check", number)]
    extra = hidden_of("check", hidden)
    results: list[Result] = []
    for one in numbers:
        need("check", folder, one)
        with progress(None, f"checking exercise {int(one)}, {len(results) + 1} of {len(numbers)}"):
            results.append(student.graded(folder, one, seed=seed, hidden=extra, show="png" if show else None))
        student.remember(folder, results[-1])
        _tell(results[-1], folder, discuss=number is not None)
    if not numbers:
        typer.echo(f"nothing is begun yet: the first exercise is {next(iter(catalogue.FILES.values())).name}")
    raise typer.Exit(0 if all(result.passed and not result.hidden_failure for result in results) else 1)


def _begun(folder: Path) -> list[str]:
    """Return the numbers of the exercises that a student has begun."""
    from normlab.course.folder import progress as rows

    states = {row.number: row.state for row in rows(folder)}
    if set(states.values()) == {"missing"}:
        raise no_exercises("check", folder)
    return [number for number, state in states.items() if state not in ("missing", "not begun")]


def _tell(result: "Result", folder: Path, discuss: bool) -> None:
    """Print a result, and write its picture. `discuss`: show a solved exercise's solutions, too."""
    from rich.padding import Padding
    from rich.text import Text

    from normlab.course import catalogue, discussion
    from normlab.course.failure import told
    from normlab.course.folder import file_of, shows_solutions

    state = ("solved", "green") if result.passed else ("not yet", "bold red")
    points = f" ({result.points} of {result.possible} points, {result.seconds:.1f} s)"
    head = Text.assemble((f"{result.number} {result.title}: ", "bold"), state, points)
    below = [
        told(failure, file_of(folder, result.number).name)
        for failure in (result.failure, result.hidden_failure)
        if failure is not None
    ]
    if result.failure is not None:
        tutorial = catalogue.exercise(result.number).tutorial
        below.append(f"a hint: normlab course hint {int(result.number)}; its tutorial: normlab tutorials {tutorial}")
    else:
        below += [discussion.standing(result.spent), discussion.next_step(result.number)]
    say(head, *(Padding(Text(text), (0, 0, 0, 2)) for text in below))
    _draw(result, folder)
    if result.passed and discuss and shows_solutions(folder):
        for way in discussion.ways(result.number):
            say(Padding(Text(way.title, "bold"), (1, 0, 0, 2)), Padding(Text(way.text), (0, 0, 1, 2)))
            typer.echo(indent(way.code, "      "))


def _draw(result: "Result", folder: Path) -> None:
    """Write a result's picture beside its file, or say why there is none."""
    from rich.padding import Padding
    from rich.text import Text

    from normlab.course import catalogue
    from normlab.course.folder import file_of

    if result.picture is None:
        if result.no_picture is not None:
            typer.echo(f"  no picture of it: {result.no_picture}")
        return
    path = file_of(folder, result.number).with_suffix(".png")
    try:
        path.write_bytes(result.picture)
    except OSError as error:
        typer.echo(f"  no picture of it: cannot write {path}: {error.strerror}")
        return
    typer.echo(f"  drawn: {path}")
    if (picture := catalogue.exercise(result.number).picture) and not isinstance(picture, str):
        say(Padding(Text(f"what to look for: {picture.look}"), (0, 0, 0, 2)))
