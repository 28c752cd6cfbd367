"""The words that pictures and the HTML report have for what they show."""

from normlab.sim.tracing.request import Request

OPERATIONS = {"ld": "load", "st": "store", "atom": "atomic"}


def count(number: int, word: str) -> str:
    """Return a number and its noun.

    >>> count(1, "sector"), count(1200, "sector")
    ('1 sector', '1,200 sectors')
    """
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def subject(request: Request) -> str:
    """Return what a request is, its line included."""
    return (
        f"{request.space} {OPERATIONS[request.operation]} of {request.array!r}, line {request.line.number}: "
        f"{count(len(request.lanes), 'lane')} of {count(request.size, 'byte')}"
    )
