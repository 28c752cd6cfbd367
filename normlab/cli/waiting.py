"""Tell a user who has to wait how long it takes, and how far it has come."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

PATIENCE = 20.0  # seconds above which the user is told how long it will take


def duration(seconds: float) -> str:
    """Return seconds in words: as minutes, hours or days."""
    if seconds < 7200:
        return f"{seconds / 60:.1f} minutes"
    return f"{seconds / 3600:.1f} hours" if seconds < 172_800 else f"{seconds / 86_400:,.0f} days"


def announce(seconds: float, advice: str) -> None:
    """Say on stderr how long it takes and what takes less, if a user would lose patience."""
    if seconds > PATIENCE:
        typer.echo(f"this takes about {duration(seconds)}; {advice} less", err=True)


@contextmanager
def progress(passes: int | None, doing: str = "running the kernels") -> Iterator[Callable[[], None]]:
    """Show a bar on stderr while the block runs, if stderr is a terminal; it only moves to and fro if `passes` is None.

    The block is given a function, to be called after each pass.
    """
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.progress import Progress

    from normlab.cli.terminal import console

    # Rich would else print on stderr what the block prints on stdout.
    bar = Progress(console=console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False)
    with bar:
        task = bar.add_task(doing, total=passes)
        yield lambda: bar.advance(task)
