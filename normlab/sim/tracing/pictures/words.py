"""The words that pictures and the HTML report have for what they show."""

from normlab.sim.tracing.request import OPERATIONS, Request


def count(number: int, word: str) -> str:
    """Return a number and its noun.

    >>> count(1, "sector"), count(1200, "sector")
    ('1 sector', '1,200 sectors')
    """
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def subject(request: Request) -> str:
    """Return what a request is: its line, and where it begins, which tells two loads of one line apart."""
    begin = f"lane {request.lanes[0]} at byte {request.addresses[0] - request.origin:,}"
    return (
        f"{request.space} {OPERATIONS[request.operation]} of {request.array!r}, line {request.line.number}: "
        f"{count(len(request.lanes), 'lane')} of {count(request.size, 'byte')}, {begin}"
    )


def maker(request: Request) -> str:
    """Return whose request it is."""
    return f"block {request.block}, warp {request.warp}"
