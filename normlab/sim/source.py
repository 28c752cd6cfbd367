"""Lines of a kernel's source."""

import linecache
from dataclasses import dataclass
from functools import cache
from itertools import islice
from types import CodeType


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
        """Return file:number: text."""
        return f"{self.file}:{self.number}: {self.text}"


@cache
def line_of(code: CodeType, instruction: int) -> Line:
    """Return the source line of an instruction (`f_lasti`) of `code`."""
    position = next(islice(code.co_positions(), instruction // 2, None), None)
    return Line(code.co_filename, (position[0] if position else None) or code.co_firstlineno)
