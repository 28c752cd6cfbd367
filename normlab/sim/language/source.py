"""Lines of a kernel's source."""

import linecache
import sys
import threading
from dataclasses import dataclass
from functools import cache
from itertools import islice
from types import CodeType
from typing import Any

NO_SOURCE = "(source not available)"
parsing = threading.RLock()
"""Held while a syntax tree is made or compiled: in two threads at once, CPython 3.11 raises SystemError."""


@dataclass(frozen=True)
class Line:
    """A line of source."""

    file: str
    number: int

    @property
    def text(self) -> str:
        """The line, without indentation."""
        return linecache.getline(self.file, self.number).strip()

    def __str__(self) -> str:
        """Return file:number: text, for a notebook's line its cell."""
        return f"{notebook_cell(self.file) or self.file}:{self.number}: {self.text or NO_SOURCE}"


def notebook_cell(file: str) -> str | None:
    """Return the name of the notebook cell that `file` stands for, if it does."""
    session: Any = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    try:
        kind, label = session.compile.format_code_name(file)
    except (AttributeError, TypeError):  # no notebook, or no cell of it
        return None
    return f"{kind} {label}"


def file_name(file: str) -> str:
    """Return what a reader knows a file by: its name, or that of a notebook's cell."""
    return notebook_cell(file) or file.rsplit("/", 1)[-1]


def line_of(code: CodeType, instruction: int) -> Line:
    """Return the source line of an instruction (`f_lasti`) of `code`."""
    return Line(code.co_filename, _number(code, instruction))


@cache
def _number(code: CodeType, instruction: int) -> int:
    """Return the line's number. Equal code of another file shares the cache entry, but it has the same lines, too."""
    position = next(islice(code.co_positions(), instruction // 2, None), None)
    return (position[0] if position else None) or code.co_firstlineno
