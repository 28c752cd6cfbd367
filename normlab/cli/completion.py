"""`normlab completion`, and what a shell completes for arguments that are no choices to Typer."""

from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

VARIABLE = "_NORMLAB_COMPLETE"  # a shell asks for completions through it
STEPPED = ("forward", "backward", "sgemm", "family")  # the ladders


class Shell(StrEnum):
    """The shells that a script is printed for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="Of which shell.")]) -> None:
    """Print a script that completes commands, options and their values at the Tab key.

    bash: normlab completion bash >> ~/.bashrc

    zsh: normlab completion zsh >> ~/.zshrc, below compinit

    fish: normlab completion fish > ~/.config/fish/completions/normlab.fish
    """
    from typer.completion import get_completion_script

    typer.echo(get_completion_script(prog_name="normlab", complete_var=VARIABLE, shell=shell.value))


def one_of(*words: str) -> Callable[[str], list[str]]:
    """Return a completion by one of some words."""
    return lambda incomplete: _beginning(incomplete, words)


def some_of(*words: str) -> Callable[[str], list[str]]:
    """Return a completion by words between commas: the last word is completed."""

    def complete(incomplete: str) -> list[str]:
        before, comma, _ = incomplete.rpartition(",")
        return _beginning(incomplete, (f"{before}{comma}{word}" for word in words if word not in before.split(",")))

    return complete


def tutorial_numbers(incomplete: str) -> list[str]:
    """Return the tutorials' numbers."""
    from normlab.learn.tutorials import FOLDER

    return _beginning(incomplete, (str(int(path.name[:2])) for path in sorted(FOLDER.glob("[0-9][0-9]_*.py"))))


def exercises(incomplete: str) -> list[str]:
    """Return the exercises' numbers, file names and names."""
    from normlab.course.catalogue import FILES

    words = (word for path in FILES.values() for word in (path.name[:2], path.stem, path.stem[3:]))
    return _beginning(incomplete, words)


def ladder_steps(incomplete: str) -> list[str]:
    """Return the ladders, or after LADDER/ its steps."""
    ladder, slash, _ = incomplete.partition("/")
    if not slash:
        return _beginning(incomplete, STEPPED)
    return _beginning(incomplete, (f"{ladder}/{name}" for name in _steps(ladder)))


def steps_of(*ladders: str) -> Callable[[str], list[str]]:
    """Return a completion by the names of some ladders' steps."""
    return lambda incomplete: _beginning(incomplete, dict.fromkeys(name for one in ladders for name in _steps(one)))


def devices(incomplete: str) -> list[str]:
    """Return the GPUs whose facts are known."""
    from normlab.kernels.plan import DEVICES

    return _beginning(incomplete, ("here", *DEVICES))


def records(incomplete: str) -> list[str]:
    """Return the names of the records in normlab/bench/records."""
    from importlib.resources import files

    return _beginning(incomplete, sorted(Path(str(one)).stem for one in (files("normlab.bench") / "records").iterdir()))


def _steps(ladder: str) -> list[str]:
    from normlab.kernels import LADDERS

    return [step.name for step in LADDERS.get(ladder, ())]


def _beginning(incomplete: str, words: Iterable[str]) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]
