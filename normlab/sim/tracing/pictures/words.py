"""Put requests into words, for the titles of pictures and for the HTML report."""

from normlab.sim.tracing.request import OPERATIONS, Request


def count(number: int, word: str) -> str:
    """Return a number and its noun, in the plural unless the number is 1.

    >>> count(1, "sector"), count(1200, "sector")
    ('1 sector', '1,200 sectors')
    """
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def subject(request: Request) -> str:
    """Return a request's operation, array, line, size, and where its first lane begins.

    The beginning, in bytes from the start of the array, tells two loads of one array on one line apart.
    """
    begin = f"lane {request.lanes[0]} at byte {request.addresses[0] - request.origin:,}"
    return (
        f"{request.space} {OPERATIONS[request.operation]} of {request.array!r}, line {request.line.number}: "
        f"{count(len(request.lanes), 'lane')} of {count(request.size, 'byte')}, {begin}"
    )


def maker(request: Request) -> str:
    """Return the block and the warp that made the request."""
    return f"block {request.block}, warp {request.warp}"
