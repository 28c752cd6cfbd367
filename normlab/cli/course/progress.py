"""`normlab course progress`."""

from pathlib import Path

import typer

from normlab.cli.course.arguments import Folder, no_exercises
from normlab.cli.terminal import say


def progress(folder: Folder = Path()) -> None:
    """Show a table of the exercises: what is solved, what is left. Nothing is run."""
    from rich.table import Table

    from normlab.course import folder as student

    rows = student.progress(folder)
    if all(row.state == "missing" for row in rows):
        raise no_exercises("progress", folder)
    marks = {"solved": "✓", "changed": "?"}
    table = Table(box=None, pad_edge=False)
    for head in ("", "", "exercise", "", "hints"):
        table.add_column(head)
    for row in rows:
        words = "changed since it was solved" if row.state == "changed" else row.state
        hints = f"{row.hints} of {row.all_hints}" if row.hints else ""
        table.add_row(marks.get(row.state, ""), row.number, row.title, words, hints)
    say(table)
    solved = sum(row.state == "solved" for row in rows)
    left = next((row for row in rows if row.state != "solved"), None)
    typer.echo(f"{solved} of {len(rows)} solved" + (f"; next: normlab course check {int(left.number)}" if left else ""))
