"""Collect for each kernel of a watched program its launches, the sanitizer's findings and a trace."""

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from textwrap import indent
from typing import Any

from normlab.sim.sanitizing.findings import PRINTED
from normlab.sim.tracing.tables import as_text, terminal_width

INDENT = 2  # columns by which a kernel's paragraph is indented


class Record:
    """The launches and findings of one kernel."""

    def __init__(self, source: Any):
        """Start an empty record of the kernel with the Python function `source`."""
        self.kernel = source.__name__
        self.file, self.line = source.__code__.co_filename, source.__code__.co_firstlineno
        self.launches = 0
        self.findings: dict[tuple, Any] = {}  # key of equal findings → the first of them
        self.launches_with: Counter[tuple] = Counter()
        self.first_with: dict[tuple, tuple[int, Any, Any]] = {}  # key → number, grid and block of its first launch
        self.first: Any = None  # the trace of the first launch, or the exception that it raised

    def add(self, findings: Iterable[Any], configuration: tuple) -> None:
        """Count the findings of one launch. Findings with the same kind, array and lines count as one finding."""
        same = {(each.kind, each.array, each.lines, each.benign): each for each in findings}
        self.findings = {**same, **self.findings}
        self.launches_with.update(same.keys())
        for key in same:
            self.first_with.setdefault(key, (self.launches, *configuration[:2]))

    def __str__(self) -> str:
        """Return a paragraph of the report, with the first findings of each kind on each array."""
        launches = plural(self.launches, "launch", "launches")
        lines = [f"{self.kernel} ({Path(self.file).name}:{self.line}): {launches}"]
        of_kind: Counter[tuple] = Counter()
        for key, finding in self.findings.items():
            of_kind[key[:2]] += 1
            if of_kind[key[:2]] <= PRINTED:
                lines.append(f"in {self._which(key)}: {finding}")
        for (kind, array), count in of_kind.items():
            if count > PRINTED:
                lines.append(
                    f"{count - PRINTED:,} more of kind {kind}{f' on {array}' if array else ''}: see --json FILE"
                )
        if isinstance(self.first, BaseException):
            words = [f"the first raised {self._raised}", *getattr(self.first, "__notes__", ())[:1]]
            hint = [] if self.findings else ["--sanitize tells more"]
            lines.append("; ".join(words + hint))
        elif self.first is not None:
            lines.append(f"the first:\n{as_text(self.first, terminal_width(sys.stderr, indented=INDENT))}")
        return indent("\n".join(lines), " " * INDENT).strip()

    def _which(self, key: tuple) -> str:
        """Return in how many launches a finding occurred, and in which launch first."""
        count, (number, grid, block) = self.launches_with[key], self.first_with[key]
        which = f"{'the' if count == 1 else 'first the'} {ordinal(number)}"
        return f"{plural(count, 'launch', 'launches')}, {which}, {self.kernel}[{grid}, {block}]"

    @property
    def _raised(self) -> str:
        return f"{type(self.first).__name__}: {self.first}"

    def as_dict(self) -> dict[str, Any]:
        """Return the record as a dict that JSON can hold."""
        raised = isinstance(self.first, BaseException)
        return {
            "kernel": self.kernel,
            "file": self.file,
            "line": self.line,
            "launches": self.launches,
            "findings": [
                {
                    **finding.as_dict(),
                    "launches": self.launches_with[key],
                    "first_launch": dict(zip(("number", "grid", "block"), self.first_with[key], strict=True)),
                }
                for key, finding in self.findings.items()
            ],
            "trace": None if raised or self.first is None else self.first.as_dict(),
            "raised": self._raised if raised else None,
        }


def plural(count: int, one: str, many: str) -> str:
    """Return `count` with its noun."""
    return f"{count or 'no'} {one if count == 1 else many}"


def ordinal(number: int) -> str:
    """Return "1st", "2nd", …"""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10 if number // 10 % 10 != 1 else 0, "th")
    return f"{number}{ending}"
