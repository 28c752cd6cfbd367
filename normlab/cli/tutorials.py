"""`normlab tutorials`."""

import subprocess
import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from normlab.cli.errors import refused, refusing

TOOLS = 'pip install "normlab[tutorials]" gets them'


def list_or_open(
    numbers: Annotated[
        list[int] | None, typer.Argument(metavar="[NN]...", show_default=False, help="Open this one in Jupyter.")
    ] = None,
    build: Annotated[bool, typer.Option("--build", help="Execute NN, or all, and write the .ipynb.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Execute NN, or all, write nothing; fail on errors and above 90 s.")
    ] = False,
) -> None:
    """Notebooks to walk through the house: lists them with their aims, or opens one.

    Exit code: 0; 1 when --check or --build found something wrong; 2 when the arguments cannot be used.
    """
    from normlab.learn.tutorials import TutorialError, chosen

    with refusing("tutorials", TutorialError):
        found = chosen(numbers or [])
    if build or check:
        _need("jupytext", "nbclient", "ipykernel")
        raise typer.Exit(_executed(found, build))
    if not numbers:
        for tutorial in found:
            typer.echo(f"{tutorial.number:2}  {tutorial.title} ({tutorial.minutes} min)\n    {tutorial.aim}")
        typer.echo("\nnormlab tutorials NN opens one in Jupyter.")
        return
    if len(numbers) > 1:
        raise refused("tutorials", "opens one at a time")
    _need("jupyterlab")
    raise typer.Exit(subprocess.run([sys.executable, "-m", "jupyterlab", str(found[0].notebook)]).returncode)


def _need(*modules: str) -> None:
    """Refuse to go on without these modules."""
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise refused("tutorials", f"needs {', '.join(missing)}; {TOOLS}")


def _executed(found: list, write: bool) -> int:
    """Execute tutorials, say how long each took, and return the exit code."""
    from normlab.learn.tutorials import TutorialError, checked

    wrong = 0
    for tutorial in found:
        try:
            seconds, problems = checked(tutorial, write)
        except TutorialError as error:
            typer.echo(f"{error}", err=True)
            wrong += 1
            continue
        wrong += bool(problems)
        typer.echo(f"{tutorial.source.name}: {seconds:.1f} s{''.join(f'; {problem}' for problem in problems)}")
    return 1 if wrong else 0
