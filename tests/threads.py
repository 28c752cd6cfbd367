"""Threads of a test, whose errors are the test's."""

import threading
from collections.abc import Callable, Iterable


def together(functions: Iterable[Callable]) -> None:
    """Run functions in threads of their own, and raise what the first of them that failed has raised."""
    errors = []

    def guarded(function):
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=[function]) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread has not ended within a minute"
    if errors:
        raise errors[0]
