"""Show tables in a terminal, in ASCII because not every pipe takes more, and as Markdown."""

import os
from collections.abc import Set
from typing import NamedTuple

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

NORMS = {"layer": "LayerNorm", "rms": "RMSNorm"}
WIDEST = 1000  # characters of a line, more than any table has
WORDS = {"best peer", "direction", "dtype", "idea", "layout", "norm", "shape", "slowest kernel", "step", "what", "who"}
KEYS = {"direction", "dtype", "layout", "n1", "n2", "norm", "shape", "step", "what", "who"}  # columns that name a row
GAP = 3  # characters between two columns


class Grid(NamedTuple):
    """A table: what it shows, its columns, and its rows. Columns named in WORDS hold words, the others numbers."""

    title: str
    head: list[str]
    rows: list[list[str]]


def room(console: Console) -> int | None:
    """Return the columns that a line may have: a terminal's, or $COLUMNS; None for a pipe, which takes whole lines."""
    return console.width if console.is_terminal or os.environ.get("COLUMNS", "").isdigit() else None


def show(grids: list[Grid], below: list[str], console: Console | None = None) -> None:
    """Print tables, and lines below them; a table that is too wide goes on below, its first columns repeated."""
    console = console or Console()
    narrow = room(console)
    width = console.width
    for grid in grids:
        for part in [grid] if narrow is None else parts(grid, narrow):
            table = Table(title=part.title, title_justify="left", box=box.SIMPLE, title_style="bold")
            for name in part.head:
                table.add_column(name, justify="left" if name in WORDS else "right", no_wrap=narrow is None)
            for row in part.rows:
                table.add_row(*(Text(cell, style="bold red" if cell == "wrong" else "") for cell in row))
            wide = console.options.update(width=WIDEST)
            console.width = width if narrow else max(width, console.measure(table, options=wide).maximum)
            print_stripped(table, console)
    for line in below:
        console.print(line, style="dim", markup=False, highlight=False, width=width)


def parts(grid: Grid, width: int) -> list[Grid]:
    """Return a table as tables of at most `width` columns each; all have its first columns, which name the rows.

    >>> wide = Grid("speed", ["step", "us", "GB/s"], [["fused", "100.5", "3000.1"]])
    >>> [part.head for part in parts(wide, 24)], [part.title for part in parts(wide, 24)]
    ([['step', 'us'], ['step', 'GB/s']], ['speed', 'continued'])
    """
    widths = [max(map(len, column)) + GAP for column in zip(grid.head, *grid.rows, strict=True)]
    key = next((number for number, name in enumerate(grid.head) if name not in KEYS), len(widths)) or 1
    chosen: list[list[int]] = [[]]
    for column in range(key, len(widths)):
        taken = sum(widths[number] for number in (*range(key), *chosen[-1], column))
        if chosen[-1] and taken > width - 2:
            chosen.append([])
        chosen[-1].append(column)
    found = []
    for number, columns in enumerate(chosen):
        head, *rows = [[row[place] for place in (*range(key), *columns)] for row in (grid.head, *grid.rows)]
        found.append(Grid("continued" if number else grid.title, head, rows))
    return found


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
