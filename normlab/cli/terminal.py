"""The console that commands print on: colour on a terminal, unless NO_COLOR is set; no line wider than there is room.

Rich is imported when something is printed, so that `--help` is quick.
"""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table


def console(pipe: int | None = None, stderr: bool = False) -> "Console":
    """Return a console. `pipe`: columns where neither a terminal nor $COLUMNS says how many; None: whole lines."""
    from rich.console import Console

    from normlab.measure.tables import WIDEST, room

    found = Console(stderr=stderr, highlight=False, color_system=None if os.environ.get("NO_COLOR") else "auto")
    if room(found) is None:
        found.width = pipe or WIDEST
    return found


def say(*lines: "RenderableType") -> None:
    """Print lines and tables, without the blanks that Rich fills lines with; a str is printed as it is."""
    from rich.console import Group
    from rich.text import Text

    from normlab.measure.tables import print_stripped

    print_stripped(Group(*(Text(line) if isinstance(line, str) else line for line in lines)), console())


def plain_table() -> "Table":
    """Return a table without lines and heads, whose cells go on below where they are too long."""
    from rich.table import Table

    return Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
