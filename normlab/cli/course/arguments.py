"""Arguments that several subcommands of `normlab course` have, and their values."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normlab.cli.completion import exercises
from normlab.cli.errors import refused, refusing

if TYPE_CHECKING:
    from normlab.course.hidden import Hidden

Folder = Annotated[Path, typer.Option("--dir", metavar="DIR", help="The folder with the exercises.")]
Seed = Annotated[int, typer.Option(min=0, help="Of the drawn inputs; the same seed draws the same.")]
HiddenFile = Annotated[
    Path | None,
    typer.Option("--hidden", metavar="FILE", show_default=False, help="More checks, from an instructor's TOML file."),
]
Number = Annotated[str, typer.Argument(metavar="NN", autocompletion=exercises, help="An exercise: 3, 03 or its name.")]


def number_of(command: str, asked: str) -> str:
    """Return the number of the exercise that was asked for."""
    from normlab.course import catalogue

    with refusing(f"course {command}"):
        return catalogue.number_of(asked)


def hidden_of(command: str, path: Path | None) -> "Hidden | None":
    """Return an instructor's further checks; None without a file."""
    if path is None:
        return None
    from normlab.course.grading import need_solvable
    from normlab.course.hidden import read

    with refusing(f"course {command}"):
        hidden = read(path)
        need_solvable(hidden)
        return hidden


def need(command: str, folder: Path, number: str) -> None:
    """Refuse a folder without the exercise."""
    from normlab.course.folder import file_of

    if not file_of(folder, number).exists():
        raise refused(
            f"course {command}",
            f"there is no {file_of(folder, number).name} in {folder.absolute()}: "
            "go to your exercises, or give --dir; normlab course start DIR lays them out",
        )


def no_exercises(command: str, folder: Path) -> typer.Exit:
    """Say that a folder has no exercises, and return the exit to be raised."""
    why = f"there are no exercises in {folder.absolute()}: begin with normlab course start DIR"
    return refused(f"course {command}", why)
