"""`normlab course hint`."""

from pathlib import Path

import typer

from normlab.cli.course.arguments import Folder, Number, need, number_of


def hint(number: Number, folder: Folder = Path()) -> None:
    """Give one hint; the next time the next one."""
    from normlab.course import folder as student

    one = number_of("hint", number)
    need("hint", folder, one)
    count, of, text = student.next_hint(folder, one)
    typer.echo(f"{count} of {of}: {text}")
