"""The command `normlab tutorials`: list, open, build and check the tutorials."""

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normlab.cli.completion import tutorial_numbers
from normlab.cli.errors import refused, refusing
from normlab.cli.terminal import say
from normlab.cli.waiting import progress

if TYPE_CHECKING:
    from normlab.learn.tutorials import Tutorial

TOOLS = 'pip install "normlab[{0}]" gets them (in a checkout: pip install -e ".[{0}]")'


def list_or_open(
    numbers: Annotated[
        list[int] | None,
        typer.Argument(
            metavar="[NN]...", autocompletion=tutorial_numbers, show_default=False, help="Open this one in Jupyter."
        ),
    ] = None,
    open_it: Annotated[bool, typer.Option("--open/--no-open", help="Start Jupyter, or only copy the notebook.")] = True,
    build: Annotated[bool, typer.Option("--build", help="Execute NN, or all, and write the .ipynb.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Execute NN, or all, write nothing; fail on errors and above 90 s.")
    ] = False,
) -> None:
    """List the tutorials with their aims, or open a copy of one in this folder.

    A copy that you have changed stays as it is, and is opened again.

    Exit code: 0; 1 when --check or --build found something wrong; 2 when the arguments cannot be used.
    """
    from normlab.learn.tutorials import TutorialError, chosen, copy

    if build and check:
        raise refused("tutorials", "takes --build or --check, which writes nothing")
    with refusing("tutorials", TutorialError):
        found = chosen(numbers or [])
    if build or check:
        _need("notebooks", "jupytext", "nbclient", "ipykernel")
        raise typer.Exit(_executed(found, build))
    if not numbers:
        _list(found)
        return
    if len(numbers) > 1:
        raise refused("tutorials", f"opens one at a time, got {', '.join(map(str, numbers))}")
    if open_it:
        _need("tutorials", "jupyterlab")
    with refusing("tutorials", TutorialError):
        path, new = copy(found[0], Path.cwd())
    typer.echo(f"{path}: {'a copy for you to change' if new else 'your copy, as you left it'}")
    if open_it:
        raise typer.Exit(_opened(path))


def _opened(path: Path) -> int:
    """Start Jupyter on a notebook, and return its exit code."""
    # The terminal sends Ctrl-C to Jupyter, too, which asks whether to stop. An exception here would kill it at once.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        # WARN: at INFO Jupyter reports every extension
        code = subprocess.run([sys.executable, "-m", "jupyterlab", "--log-level=WARN", str(path)]).returncode
    finally:
        signal.signal(signal.SIGINT, before)
    if code and hasattr(os, "geteuid") and os.geteuid() == 0:  # as in a container
        typer.echo(f"Jupyter does not start for root unless told to: jupyter lab --allow-root {path.name}", err=True)
    return code


def _list(found: list["Tutorial"]) -> None:
    """Print numbers, titles, minutes and aims, and the command that opens a tutorial."""
    from rich.padding import Padding
    from rich.text import Text

    for one in found:
        head = Text.assemble(f"{one.number:2}  ", (one.title, "bold"), f" ({one.minutes} min)")
        say(head, Padding(Text(one.aim), (0, 0, 0, 4)))
    say("", "normlab tutorials NN copies one into this folder and opens it in Jupyter.")
    if find_spec("jupyterlab") is None:
        say(f"That needs jupyterlab; {TOOLS.format('tutorials')}.")


def _need(extra: str, *modules: str) -> None:
    """Refuse to go on without these modules, which the package's extra of this name installs."""
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise refused("tutorials", f"needs {', '.join(missing)}; {TOOLS.format(extra)}")


def _executed(found: list["Tutorial"], write: bool) -> int:
    """Execute tutorials, say how long each took, and return the exit code."""
    from normlab.learn.tutorials import TutorialError, checked

    wrong = 0
    for position, tutorial in enumerate(found, start=1):
        try:
            with progress(None, f"executing {tutorial.source.name}, {position} of {len(found)}"):
                seconds, problems = checked(tutorial, write)
        except TutorialError as error:
            typer.echo(f"{error}", err=True)
            wrong += 1
            continue
        wrong += bool(problems)
        typer.echo(f"{tutorial.source.name}: {seconds:.1f} s{''.join(f'; {problem}' for problem in problems)}")
    return 1 if wrong else 0
