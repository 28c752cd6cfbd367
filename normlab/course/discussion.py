"""Tell a student who has solved an exercise where they stand, what comes next, and how else it can be solved.

Beside each reference solution `solutions/NN_name.py` lies `solutions/NN_name.md`: a paragraph that discusses the
solution, and under headings other good ones, each with a sentence and its functions.
"""

import ast
import re
from typing import NamedTuple

from normlab.course import catalogue, reference
from normlab.course.failure import Spent

WAY = re.compile(r"(?ms)^## (?P<title>.+?)\n\n(?P<text>.+?)\n\n```python\n(?P<code>.+?)\n```\n")
MARKED = re.compile(r"(?m)^ *# Your line.*\n")


class Way(NamedTuple):
    """A way to solve an exercise: its title, a text about it, and the functions to write."""

    title: str
    text: str
    code: str


def ways(number: str) -> list[Way]:
    """Return the reference solution, discussed, and then the other good solutions that there are."""
    told = reference.path(number).with_suffix(".md").read_text(encoding="utf-8")
    first = Way("One way to write it", _flowing(told.partition("\n## ")[0]), _written(number))
    others = [Way(found["title"], _flowing(found["text"]), found["code"]) for found in WAY.finditer(told)]
    return [first, *others]


def _flowing(text: str) -> str:
    """Return a text without its line ends, which a terminal or a page makes anew."""
    return " ".join(text.split())


def _written(number: str) -> str:
    """Return the functions of the reference solution that have places to write in."""
    source, skeleton = reference.path(number).read_text(encoding="utf-8"), catalogue.skeleton(number)
    lines, given = source.splitlines(keepends=True), skeleton.splitlines(keepends=True)
    to_write = {
        node.name
        for node in ast.parse(skeleton).body
        if isinstance(node, ast.FunctionDef) and MARKED.search("".join(given[node.lineno : _end(node, given)]))
    }
    parts = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name in to_write:
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            text = "".join([*lines[first - 1 : node.lineno], *lines[node.body[0].end_lineno : node.end_lineno]])
            parts.append(MARKED.sub("", text).rstrip())
    return "\n\n\n".join(parts)


def _end(node: ast.FunctionDef, lines: list[str]) -> int:
    """Return the number of a function's last line, with the comments that follow its last statement."""
    end = node.end_lineno or node.lineno
    while end < len(lines) and lines[end].startswith("    "):
        end += 1
    return end


def standing(spent: tuple[Spent, ...]) -> str:
    """Return how far below the budget a solution is, or that it is at the budget, and what it costs."""
    if not spent:
        return ""
    below = [one for one in spent if one.counted < one.allowed]
    told = ", ".join(f"{one.counted:,} of {one.allowed:,} {one.words}" for one in spent)
    if not below:
        return f"at the budget: {told}"
    most = max(below, key=lambda one: 1 - one.counted / one.allowed)
    share = 1 - most.counted / most.allowed
    return f"below the budget, by {share:.0%} in {most.words}: {told}"


def following(number: str) -> str | None:
    """Return the number of the exercise that comes next, or None after the last one."""
    numbers = list(catalogue.FILES)
    place = numbers.index(number) + 1
    return numbers[place] if place < len(numbers) else None


def next_step(number: str) -> str:
    """Return what to do after an exercise, as a line of text."""
    after = following(number)
    if after is None:
        return "next: you have come to the last exercise; normlab course progress shows what is left"
    exercise = catalogue.exercise(after)
    return (
        f"next: {int(after)} {exercise.title} (normlab course check {int(after)}; "
        f"its tutorial: normlab tutorials {exercise.tutorial})"
    )
