"""Show tables in a terminal, in ASCII because not every pipe takes more, and as Markdown."""

from collections.abc import Set
from typing import NamedTuple

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

NORMS = {"layer": "LayerNorm", "rms": "RMSNorm"}
WIDEST = 1000  # characters of a line, more than any table has
WORDS = {"best peer", "direction", "dtype", "idea", "layout", "norm", "shape", "slowest kernel", "step", "who"}


class Grid(NamedTuple):
    """A table: what it shows, its columns, and its rows. Columns named in WORDS hold words, the others numbers."""

    title: str
    head: list[str]
    rows: list[list[str]]


def show(grids: list[Grid], below: list[str], console: Console | None = None) -> None:
    """Print tables, and lines below them; no column is cut, however narrow the terminal is."""
    console = console or Console()
    width = console.width
    for grid in grids:
        table = Table(title=grid.title, title_justify="left", box=box.SIMPLE, title_style="bold")
        for name in grid.head:
            table.add_column(name, justify="left" if name in WORDS else "right", no_wrap=True)
        for row in grid.rows:
            table.add_row(*(Text(cell, style="bold red" if cell == "wrong" else "") for cell in row))
        console.width = max(width, console.measure(table, options=console.options.update(width=WIDEST)).maximum)
        print_stripped(table, console)
    for line in below:
        console.print(line, style="dim", markup=False, highlight=False, width=width)


def print_stripped(shown: RenderableType, console: Console) -> None:
    """Print without the blanks that rich fills each line with: a pipe would keep them."""
    with console.capture() as captured:
        console.print(shown)
    print(*(line.rstrip() for line in captured.get().splitlines()), sep="\n", file=console.file)


def markdown(grid: Grid, words: Set[str] = WORDS) -> str:
    """Return a table as Markdown without its title: the columns named in `words` to the left, numbers to the right."""
    rules = ["---" if name in words else "--:" for name in grid.head]
    lines = [grid.head, rules, *grid.rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
