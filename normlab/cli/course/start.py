"""Lay out the exercises of the course: `normlab course start`."""

from pathlib import Path
from typing import Annotated

import typer

from normlab.cli.errors import refused


def start(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to; made if it is not there.")],
    hide: Annotated[
        bool, typer.Option("--hide-solutions", help="For instructors: show no solution after an exercise is solved.")
    ] = False,
) -> None:
    """Lay the exercises out, one file per exercise. Files that are there already stay as they are."""
    from normlab.course import folder as student

    try:
        written, kept = student.start(folder)
        if hide:
            student.hide_solutions(folder)
    except OSError as error:
        raise refused("course start", f"cannot write to {folder}: {error.strerror}") from None
    stays = f"; {len(kept)} that were there stay as they are" if kept else ""
    typer.echo(f"{len(written)} exercises laid out in {folder}{stays}.")
    typer.echo(f"Open {folder / (written or kept)[0]}, read it, write your lines; then, in {folder}:")
    typer.echo("  normlab course check 1     what is wrong, where, and for which input")
    typer.echo("  normlab course hint 1      a hint, and each time another one")
    typer.echo("  normlab course progress    what is left")
    typer.echo("What stands under if __name__ == '__main__': is yours, to try things out.")
