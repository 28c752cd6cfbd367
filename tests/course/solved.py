"""Answers to the exercises: reference solutions, wrong ones, and other right ones.

A file under solutions/ has the functions that a student completes; here they are put into the exercise's file.
A file under wrong/ or other/ holds changes of that solution, as a diff does: after `== name` come words about the
change, then its lines, with `@@` between two places. Under wrong/ the words begin with the kind of failure that the
change must meet with, and may end with `Says:` and what the message has to tell.
"""

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from normlab.course import catalogue

HERE = Path(__file__).parent


@cache
def solution(number: str) -> str:
    """Return the exercise's file with the functions of the reference solution."""
    text = (HERE / "solutions" / catalogue.FILES[number].name).read_text()
    source = catalogue.skeleton(number)
    for node in ast.parse(text).body[1:]:
        assert isinstance(node, ast.FunctionDef)
        source = _with_body(source, node.name, text.splitlines()[node.lineno : node.end_lineno])
    return source


def _with_body(source: str, name: str, body: list[str]) -> str:
    """Put `body` in the place of all that follows the docstring of the function `name`."""
    (function,) = (n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name == name)
    lines = source.splitlines()
    ends = [n.lineno - 1 for n in ast.parse(source).body if n.lineno > function.lineno] + [len(lines) + 3]
    ends = [end - 1 if end <= len(lines) and lines[end - 1].startswith("@") else end for end in ends]
    return "\n".join([*lines[: function.body[0].end_lineno], *body, "", "", *lines[ends[0] :]]) + "\n"


@dataclass(frozen=True)
class Changed:
    """A changed solution: its text, the kind of failure it must meet with, and words that the message must have."""

    exercise: str
    name: str
    source: str
    kind: str
    says: str

    @property
    def number(self) -> str:
        """Return the exercise's number."""
        return self.exercise[:2]

    def __str__(self) -> str:
        return f"{self.exercise}/{self.name}"


def _changed(exercise: str, block: str) -> Changed:
    """Return one changed solution of a file under wrong/ or other/."""
    name, *lines = block.strip("\n").splitlines()
    words = " ".join(line for line in lines if line[0] not in " +-@")
    lines = [line for line in lines if line[0] in " +-@"]
    source = solution(exercise[:2])
    for hunk in "\n".join(lines).split("\n@@\n"):
        old = "".join(f"{line[1:]}\n" for line in hunk.splitlines() if line[0] != "+")
        new = "".join(f"{line[1:]}\n" for line in hunk.splitlines() if line[0] != "-")
        assert source.count(old) == 1, f"{exercise}/{name}: {source.count(old)} places are\n{old}"
        source = source.replace(old, new)
    kind, _, reason = words.partition(":")
    return Changed(exercise, name, source, kind, reason.partition("Says:")[2].strip())


def _changes(folder: str) -> list[Changed]:
    """Return the changed solutions of all exercises."""
    return [
        _changed(path.stem, block)
        for path in sorted((HERE / folder).glob("*.diff"))
        for block in path.read_text().removeprefix("== ").split("\n== ")
    ]


WRONG = _changes("wrong")
OTHERS = _changes("other")
