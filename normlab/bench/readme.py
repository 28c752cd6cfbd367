"""Put tables between markers of a README: those of the benchmarks, and what `.ci/site/readme.py` makes."""

from importlib.resources import files
from pathlib import Path
from typing import Any

from normlab.bench.report import markdown

PLOT = "norm.svg"  # in records/, where `normlab bench report --plot` is to put it
REPORT = "normlab bench report"  # the name in the markers around the benchmarks


def benchmarks(records: list[dict[str, Any]]) -> str:
    """Return the benchmarks' part: the plot, if there is one, and the records' tables."""
    tables = markdown(records)
    if not (files("normlab.bench") / "records" / PLOT).is_file():
        return tables
    return f"![Fraction of the copy bandwidth over n2](normlab/bench/records/{PLOT})\n\n{tables}"


def between(text: str, name: str = REPORT) -> str:
    """Return what stands between the markers of a name.

    Raises:
        ValueError: there is not one of each marker, in this order.
    """
    begin, end = markers(name)
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"one line {begin} and below it one line {end} are needed")
    return text.partition(begin)[2].partition(end)[0].strip()


def insert(readme: Path, tables: str, name: str = REPORT) -> None:
    """Replace what stands between the markers of a file; ValueError, naming the file, as `between`."""
    text, (begin, end) = readme.read_text(), markers(name)
    try:
        between(text, name)
    except ValueError as error:
        raise ValueError(f"{readme}: {error}") from None
    readme.write_text(f"{text.partition(begin)[0]}{begin}\n\n{tables}\n\n{end}{text.partition(end)[2]}")


def markers(name: str) -> tuple[str, str]:
    """Return the lines before and after a part of the README."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
