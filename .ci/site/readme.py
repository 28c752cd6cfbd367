"""Write the tables and the quoted numbers of README, docs/ and tutorials/: `PYTHONPATH=$PWD python .ci/site/readme.py`.

A table stands between two lines `<!-- NAME: begin -->` and `<!-- NAME: end -->` (`tabulated.PARTS`), a number in a
sentence between `<!--=NAME-->` and `<!--=-->` (`quoted.QUOTED`). tests/test_readme.py fails if one of them differs
from the records, or if a table of numbers stands outside all markers.
"""

import re
from pathlib import Path

from quoted import QUOTED
from tabulated import PARTS

ROOT = Path(__file__).parents[2]
BEGIN = re.compile(r"<!-- (.+?): begin -->")
QUOTE = re.compile(r"<!--=([^>]+?)-->(.*?)<!--=-->", re.DOTALL)
NUMBERS = re.compile(r"(?m)^\|.*\|\s*\**[0-9][0-9.,e-]*\**\s*\|.*$")  # a row of a table with a cell that is a number


def pages() -> list[Path]:
    """Return the files whose tables and numbers come from the records: Markdown, and the tutorials' sources."""
    folders = [*sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "tutorials").glob("[0-9]*.py"))]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "tutorials/README.md", *folders]


def made(text: str) -> str:
    """Return a page with all its tables and quoted numbers made anew.

    Raises:
        ValueError: a name that nothing makes, or a table that does not end.
    """
    for name in BEGIN.findall(text):
        before, _, after = split(text, name)
        text = before + block(name) + after
    return QUOTE.sub(lambda found: f"<!--={found[1]}-->{value(found[1])}<!--=-->", text)


def block(name: str) -> str:
    """Return what stands between a table's two markers; an empty table takes no lines."""
    table = PARTS[name]()
    return f"\n\n{table}\n\n" if table else ""


def value(name: str) -> str:
    """Return a quoted number."""
    if name not in QUOTED:
        raise ValueError(f"no number {name!r}: .ci/site/quoted.py has {', '.join(QUOTED)}")
    return QUOTED[name]()


def stale(text: str) -> list[str]:
    """Return what on a page is not what the records make: names of tables, and quoted numbers with their names."""
    tables = [name for name in BEGIN.findall(text) if split(text, name)[1] != block(name)]
    quotes = [f"{name}: {said}, not {value(name)}" for name, said in QUOTE.findall(text) if said != value(name)]
    return tables + quotes


def unmade(text: str) -> list[str]:
    """Return the rows of numbers that stand outside all markers, where nothing would make them."""
    for name in BEGIN.findall(text):
        before, _, after = split(text, name)
        text = before + after
    return NUMBERS.findall(text)


def split(text: str, name: str) -> tuple[str, str, str]:
    """Return the text up to a table, the table, and the text after it; the markers stay outside."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if name not in PARTS:
        raise ValueError(f"no table {name!r}: .ci/site/tabulated.py has {', '.join(PARTS)}")
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"one line {begin} and below it one line {end} are needed")
    first, last = text.index(begin) + len(begin), text.index(end)
    return text[:first], text[first:last], text[last:]


def main() -> None:
    """Write every page that is stale."""
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if (anew := made(text)) != text:
            page.write_text(anew, encoding="utf-8")


if __name__ == "__main__":
    main()
