"""Define what `sanitize` returns: a `Report` of `Finding`s; each finding names the `Act` of one or two threads."""

from collections import Counter
from dataclasses import dataclass
from html import escape
from typing import Any

from normlab.sim.language.source import Line

PRINTED = 5  # findings of one kind on one array

KINDS = (
    "race",
    "uninitialized-read",
    "out-of-bounds",
    "negative-index",
    "barrier-divergence",
    "shuffle-mask",
    "deadlock",
    "lock-order",
)


@dataclass(frozen=True)
class Act:
    """What one thread does at one line.

    operation: "read", "write", "atomic", "copy" for the writing side of an asynchronous copy, or the name of a barrier
    or warp operation. A thread without a line has "returned" if it has left the kernel, is "absent" if it gives nothing
    to a shuffle, or has "not begun". block, thread: indices (x, y, z). warp: in its block; lane: 0 to 31.
    """

    operation: str
    block: tuple[int, int, int]
    thread: tuple[int, int, int]
    warp: int
    lane: int
    source: Line | None

    @property
    def file(self) -> str | None:
        """The path of the source file."""
        return None if self.source is None else self.source.file

    @property
    def line(self) -> int | None:
        """The number of the line there."""
        return None if self.source is None else self.source.number

    @property
    def text(self) -> str:
        """The line itself, without indentation."""
        return "" if self.source is None else self.source.text

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as what JSON has."""
        return {
            "operation": self.operation,
            "block": [*map(int, self.block)],
            "thread": [*map(int, self.thread)],
            "warp": int(self.warp),
            "lane": int(self.lane),
            "file": self.file,
            "line": self.line,
            "text": self.text,
        }

    def __str__(self) -> str:
        """Return the operation, the thread and the line."""
        who = f"{self.operation} by block {self.block}, warp {self.warp}, lane {self.lane}, thread {self.thread}"
        return who if self.source is None else f"{who}\n    {self.source}"


@dataclass(frozen=True)
class Finding:
    """One mistake. If it happens again with the same array between the same lines, its count grows.

    kind: one of `KINDS`. array, space, index: the memory, its space ("global", "shared" or "local") and the element,
    negative or out of bounds as the kernel gave it; None, None and () if no memory is involved. first, second: what the
    two threads did (second is None if one thread alone made the mistake). count: how often it happened, or at least how
    often. benign: a race of writes that all store what the element holds already. advice: what to do, in a sentence.
    """

    kind: str
    array: str | None
    space: str | None
    index: tuple[int, ...]
    first: Act
    second: Act | None
    advice: str
    # A lower bound: after 256 races of an instruction at an element (shadow.py), its accesses there are not compared.
    count: int = 1
    benign: bool = False

    @property
    def lines(self) -> tuple[int, ...]:
        """The numbers of the lines involved, in ascending order, each once."""
        # An act has no line if its thread has returned, is absent or has not begun.
        return tuple(sorted({act.line for act in (self.first, self.second) if act is not None and act.line}))

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as what JSON has."""
        return {
            "kind": self.kind,
            "array": self.array,
            "space": self.space,
            "index": [*map(int, self.index)],
            "first": self.first.as_dict(),
            "second": None if self.second is None else self.second.as_dict(),
            "lines": list(self.lines),
            "count": self.count,
            "benign": self.benign,
            "advice": self.advice,
        }

    def __str__(self) -> str:
        """Return the finding in four to six lines."""
        times = "once" if self.count == 1 else f"{self.count:,} times"
        place = f"[{', '.join(map(str, self.index))}]" if self.index else ""  # a record has no axes
        # A barrier or a shuffle has no array: the heading is then the kind alone.
        where = "" if self.array is None else f" on {self.space} {self.array}{place}"
        equal = " of equal values" if self.benign else ""
        # The source line of an act has its own indentation, deeper than the act's two spaces.
        acts = "\n".join(f"  {act}" for act in (self.first, self.second) if act is not None)
        return f"{self.kind}{equal}{where}, {times}\n{acts}\n  {self.advice}"


@dataclass(frozen=True, repr=False)
class Report:
    """All findings of a launch. `print` it, or let a notebook show it.

    kernel: its name. findings: sorted by file and line; a benign race is one of them.
    """

    kernel: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong: all findings are benign races, of writes that store the same value."""
        return all(finding.benign for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as what JSON has: numbers, texts, lists and dictionaries."""
        # With `ok`, so that a program that reads the JSON need not know which races are benign.
        return {"kernel": self.kernel, "ok": self.ok, "findings": [finding.as_dict() for finding in self.findings]}

    def __repr__(self) -> str:
        """Return the kernel's name and the kinds of the findings."""
        # In a line, as a debugger or a failed assertion shows it; `print` gives the findings themselves.
        kinds = Counter(finding.kind for finding in self.findings)
        listed = ", ".join(kind if count == 1 else f"{kind} ({count:,})" for kind, count in kinds.items())
        return f"<Report of {self.kernel}: {self._count}{': ' if kinds else ''}{listed}>"

    def __str__(self) -> str:
        """Return the findings as text; of one kind on one array at most the first PRINTED."""
        printed, left_out = self._selected()
        numbered = (f"{number}. {finding}" for number, finding in printed)
        return "\n\n".join([self._head, *numbered, *left_out])

    def _repr_html_(self) -> str:
        """Return the same for a notebook."""
        printed, left_out = self._selected()
        parts = [f"<p><b>{escape(self._head)}</b></p>"]
        for number, finding in printed:
            # The first line is the heading, the last one the advice, and source lines in between stay preformatted.
            title, *rest = str(finding).split("\n")
            # The two spaces indent acts below a heading in text; a <pre> needs only what is deeper than that.
            listing = "\n".join(line.removeprefix("  ") for line in rest[:-1])
            # Source lines are escaped, because `i < n` would begin a tag.
            parts.append(
                f"<p><b>{number}. {escape(title)}</b></p><pre>{escape(listing)}</pre><p>{escape(rest[-1])}</p>"
            )
        return "".join([*parts, *(f"<p>{escape(line)}</p>" for line in left_out)])

    @property
    def _count(self) -> str:
        count = len(self.findings)
        return f"{count:,} finding{'' if count == 1 else 's'}" if count else "nothing found"

    @property
    def _head(self) -> str:
        return f"{self._count} in kernel {self.kernel!r}"

    def _selected(self) -> tuple[list[tuple[int, Finding]], list[str]]:
        """Return the numbered findings to print, and lines that say how many more there are."""
        seen: Counter[tuple[str, str | None]] = Counter()
        printed = []
        # Numbered before any is left out, so that finding 7 of the text is report.findings[6].
        for number, finding in enumerate(self.findings, 1):
            # Forty bad indices of one array are one mistake to a reader; those of another array may be another.
            seen[finding.kind, finding.array] += 1
            if seen[finding.kind, finding.array] <= PRINTED:
                printed.append((number, finding))
        left_out = [
            f"{count - PRINTED:,} more of kind {kind}{'' if array is None else f' on {array}'}; "
            "all are in report.findings"
            for (kind, array), count in seen.items()
            if count > PRINTED
        ]
        return printed, left_out
