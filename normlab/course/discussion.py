"""Say what a solved exercise leaves to learn: its costs beside the budget, other solutions, the next exercise.

`solutions/NN_name.md` begins with a paragraph about the reference solution and that solution's functions. Other good
solutions follow, each under a heading with a sentence and its functions.
"""

import re
from typing import NamedTuple

from normlab.course import catalogue, reference
from normlab.course.failure import Spent

WAY = re.compile(r"(?ms)^## (?P<title>.+?)\n\n(?P<text>.+?)\n\n```python\n(?P<code>.+?)\n```\n")


class Way(NamedTuple):
    """A way to solve an exercise: its title, a text about it, and the functions to write."""

    title: str
    text: str
    code: str


def ways(number: str) -> list[Way]:
    """Return the reference solution with its discussion, then the other good solutions."""
    told = f"## One way to write it\n\n{reference.discussion(number)}"
    return [Way(found["title"], _flowing(found["text"]), found["code"]) for found in WAY.finditer(told)]


def _flowing(text: str) -> str:
    """Return a text in one line, because a terminal or a page breaks lines itself."""
    return " ".join(text.split())


def standing(spent: tuple[Spent, ...]) -> str:
    """Return a phrase with a solution's costs and how far below the budget they are; "" for no costs."""
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
