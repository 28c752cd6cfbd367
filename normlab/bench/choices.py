"""Check the options of `normlab bench`; errors name what was given and what can be given.

Lists come as typer hands them over: an option given several times, each time with names or numbers between commas.
"""

import re

from normlab.bench.peers import ON_REQUEST, PEERS
from normlab.host.arrays import FLOATS

DTYPES = tuple(FLOATS)
DEFAULT_DTYPES = ("bfloat16", "float16", "float32")
PEER_NAMES = tuple(PEERS)
DEFAULT_PEERS = tuple(name for name in PEERS if name not in ON_REQUEST)


def one(option: str, given: str, known: tuple[str, ...]) -> str:
    """Return the name that was given.

    Raises:
        ValueError: not one of those known.

    >>> one("--norm", "batch", ("layer", "rms"))
    Traceback (most recent call last):
    ValueError: --norm batch: choose from layer, rms
    """
    if given not in known:
        raise ValueError(f"{option} {given}: choose from {', '.join(known)}")
    return given


def one_or_both(option: str, given: str, known: tuple[str, ...]) -> list[str]:
    """Return the one name that was given, or all for "both"; ValueError as `one`."""
    return list(known) if given == "both" else [one(option, given, (*known, "both"))]


def some(option: str, given: list[str] | None, known: tuple[str, ...], default: tuple[str, ...]) -> list[str]:
    """Return the names that were given, each once; ValueError as `one`.

    >>> some("--dtype", ["float16,float32", "float16"], DTYPES, DEFAULT_DTYPES)
    ['float16', 'float32']
    """
    names = list(default) if given is None else _split(given)
    return [one(option, name, known) for name in dict.fromkeys(names)]


def peers(given: list[str] | None) -> list[str]:
    """Return the peers that were given, as `some`; "none" is no peer, None all whose forward saves for a backward.

    >>> peers(None), peers(["compile,compile-inference"])
    (['torch', 'compile', 'liger', 'quack', 'apex', 'triton'], ['compile', 'compile-inference'])
    """
    return [] if given == ["none"] else some("--peers", given, PEER_NAMES, DEFAULT_PEERS)


def counts(option: str, given: list[str] | None) -> list[int]:
    """Return positive numbers.

    >>> counts("--n2", ["64,128", "2^18"])
    [64, 128, 262144]
    """
    return [count(option, text) for text in _split(given or [])]


def count(option: str, text: str) -> int:
    """Return one positive number, which may be written as a power.

    Raises:
        ValueError: anything else.
    """
    parts = re.fullmatch(r"(\d+)(?:\^(\d{1,2}))?", text)
    number = int(parts[1]) ** int(parts[2] or 1) if parts else 0
    if number < 1:
        raise ValueError(f"{option} {text}: a whole number of at least 1 is needed, such as 4096 or 2^12")
    return number


def sizes(option: str, text: str) -> tuple[int, int, int]:
    """Return M, N and K of a product, given as three numbers or as one for all.

    Raises:
        ValueError: anything else.

    >>> sizes("--size", "4096"), sizes("--size", "4000x4100x3000")
    ((4096, 4096, 4096), (4000, 4100, 3000))
    """
    numbers = [count(option, part) for part in text.lower().split("x")]
    if len(numbers) not in (1, 3):
        raise ValueError(f"{option} {text}: M x N x K is needed, such as 4000x4100x3000, or one number for all three")
    m, n, k = numbers if len(numbers) == 3 else numbers * 3
    return m, n, k


def _split(given: list[str]) -> list[str]:
    return [name.strip() for names in given for name in names.split(",")]
