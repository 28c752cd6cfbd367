"""Tell a user in one line what a command cannot use, and end it with exit code 2."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer


def refused(command: str, why: object) -> typer.Exit:
    """Print why a command refuses, to stderr, and return the exit to be raised.

    A file's OSError is said as "FILE: no such file or directory", without its number.
    """
    if isinstance(why, OSError) and why.filename and why.strerror:
        why = f"{why.filename}: {why.strerror[0].lower()}{why.strerror[1:]}"
    typer.echo(f"normlab {command}: {why}", err=True)
    return typer.Exit(2)


@contextmanager
def refusing(command: str, *errors: type[Exception]) -> Iterator[None]:
    """Refuse a command whose `with` block raises ValueError, OSError or one of `errors`."""
    caught: tuple[type[Exception], ...] = (ValueError, OSError, *errors)
    try:
        yield
    except caught as error:
        raise refused(command, error) from None
