"""Galleries of wrong solutions and of other right ones, a file for each exercise.

A gallery is a text of changes to the reference solution, whose comments are left out. For each answer it has

    == name: kind | words          for a wrong answer the kind of failure, and words that the message must have
    # What it does.
    -    lines of the reference solution
    +    lines in their place       changes to other places follow after an empty line

An answer of added lines only has nothing of the reference solution: its lines stand at the exercise's marked places,
one after another. Lines that begin without a space, such as a device function, stand above the first kernel.

The solutions that `normlab course check` shows after an exercise is solved are among the other right ones.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from normlab.course import catalogue, discussion, reference
from normlab.course.exercise import Exercise

HERE = Path(__file__).parent
COMMENTS = re.compile(r"^ *#.*\n|  # .*$", re.MULTILINE)
MARKS = re.compile(r"^ *# Your line.*\n", re.MULTILINE)


@dataclass(frozen=True)
class Given:
    """A solution: its exercise and name, its text, the kind of failure it must meet with, and words of the message."""

    number: str
    name: str
    source: str
    kind: str
    says: str

    def __str__(self) -> str:
        """Return the exercise's name and the solution's, which name a test."""
        return f"{catalogue.exercise(self.number).name}/{self.name}"


def read(folder: Path) -> list[Given]:
    """Read all galleries of a folder."""
    return [one for path in sorted(folder.glob("*.diff")) for one in _gallery(path)]


def _gallery(path: Path) -> Iterator[Given]:
    number = catalogue.number_of(path.stem)
    for part in re.split(r"^== ", path.read_text(), flags=re.MULTILINE)[1:]:
        head, _, body = part.partition("\n")
        name, _, reason = head.partition(": ")
        kind, _, says = reason.partition(" | ")
        changes = re.sub(r"^#.*\n", "", body, flags=re.MULTILINE).strip("\n")
        hunks = [hunk.splitlines() for hunk in changes.split("\n\n")]
        yield Given(number, name, _changed(number, hunks, f"{path.name}, {name}"), kind, says)


def _changed(number: str, hunks: list[list[str]], where: str) -> str:
    """Return the text that the hunks of an answer make of the reference solution, or of the exercise."""
    above = [hunk for hunk in hunks if hunk[0][0] == "+" and not hunk[0].startswith("+ ")]
    inside = [hunk for hunk in hunks if hunk not in above]
    if all(line[0] == "+" for hunk in inside for line in hunk):
        text = catalogue.skeleton(number)
        for mark, hunk in reversed([*zip(MARKS.finditer(text), inside, strict=False)]):
            text = text[: mark.end()] + _side(hunk, "+") + text[mark.end() :]
    else:
        text = COMMENTS.sub("", reference.source(number))
        for hunk in inside:
            old = "\n" + _side(hunk, "- ")
            assert text.count(old) == 1, f"{where}: {old!r} stands {text.count(old)} times in the reference solution"
            text = text.replace(old, "\n" + _side(hunk, "+ "))
    for hunk in above:
        before, kernel, after = text.partition("\n\n\n@cuda.jit")
        text = before + "\n\n\n" + _side(hunk, "+") + kernel.removeprefix("\n") + after
    return text


def _side(hunk: list[str], signs: str) -> str:
    return "".join(f"{line[1:]}\n" for line in hunk if line[0] in signs)


def in_turn(given: Iterable, others: Iterable) -> list[tuple]:
    """Pair each of the given with one of the others, which take turns."""
    return [*zip(given, cycle(others), strict=False)]


def thin_out(monkeypatch, every: dict[int, int]) -> None:
    """Let solutions be graded on every so many of a seed's inputs, which are sorted by size, the smallest first."""
    draws = Exercise.draws
    monkeypatch.setattr(Exercise, "draws", lambda exercise, seed, count: draws(exercise, seed, count)[:: every[seed]])


OTHERS = [
    *read(HERE / "other"),
    *(
        Given(number, way.title, reference.filled(number, way.code), "", "")
        for number in catalogue.FILES
        for way in discussion.ways(number)[1:]
    ),
]
WRONG = read(HERE / "wrong")
