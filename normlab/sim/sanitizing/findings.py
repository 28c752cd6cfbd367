"""What `sanitize` returns: a `Report` of `Finding`s, each of one or two `Act`s of threads."""

from dataclasses import dataclass

from normlab.sim.source import Line

KINDS = (
    "race",
    "uninitialized-read",
    "out-of-bounds",
    "negative-index",
    "barrier-divergence",
    "shuffle-mask",
    "deadlock",
)


@dataclass(frozen=True)
class Act:
    """What one thread does at one line.

    operation: "read", "write", "atomic", or the name of a barrier or warp operation; "returned" of a thread that has
    left the kernel, and so stands at no line. block, thread: indices (x, y, z). warp: in its block; lane: 0 to 31.
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

    def __str__(self) -> str:
        """Return what is done, by whom and where."""
        who = f"{self.operation} by block {self.block}, warp {self.warp}, lane {self.lane}, thread {self.thread}"
        return who if self.source is None else f"{who}\n    {self.source}"


@dataclass(frozen=True)
class Finding:
    """One mistake. What happens again with the same array between the same lines is counted, not repeated.

    kind: one of `KINDS`. array, space, index: the memory, its space ("global", "shared" or "local") and the element,
    negative or out of bounds as the kernel gave it; None, None and () where no memory is meant. first, second: what
    the two threads did (second is None if one is enough to go wrong). count: how often, or at least, as an instruction
    that raced with 256 others at an element is not asked about there any more. benign: a race of writes that
    all store what the element holds already. advice: what to do, in a sentence.
    """

    kind: str
    array: str | None
    space: str | None
    index: tuple[int, ...]
    first: Act
    second: Act | None
    advice: str
    count: int = 1
    benign: bool = False

    @property
    def lines(self) -> tuple[int, ...]:
        """The numbers of the lines involved, in ascending order, each once."""
        return tuple(sorted({act.line for act in (self.first, self.second) if act is not None and act.line}))

    def __str__(self) -> str:
        """Return the finding in four to seven lines."""
        times = "once" if self.count == 1 else f"{self.count} times"
        where = "" if self.array is None else f" on {self.space} {self.array}[{', '.join(map(str, self.index))}]"
        equal = " of equal values" if self.benign else ""
        acts = "\n".join(f"  {act}" for act in (self.first, self.second) if act is not None)
        return f"{self.kind}{equal}{where}, {times}\n{acts}\n  {self.advice}"


@dataclass(frozen=True)
class Report:
    """All that a launch did wrong. `print` it.

    kernel: its name. findings: sorted by file and line; a benign race is one of them.
    """

    kernel: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def __str__(self) -> str:
        """Return all findings, one after another."""
        if self.ok:
            return f"nothing found in kernel {self.kernel!r}"
        count = len(self.findings)
        head = f"{count} finding{'' if count == 1 else 's'} in kernel {self.kernel!r}"
        numbered = (f"{number}. {finding}" for number, finding in enumerate(self.findings, 1))
        return "\n\n".join([head, *numbered])
