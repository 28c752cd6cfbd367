"""Tell a user in one line what a command cannot use, and end it with exit code 2."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer


def refused(command: str, why: object) -> typer.Exit:
    """Print why a command refuses, to stderr, and return the exit to be raised."""
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
