"""Check answers to the questions that the tutorials ask: numbers, and sets of numbers."""

import html
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


class Question(NamedTuple):
    """A question of a tutorial: its answer, and a hint for a wrong one."""

    answer: frozenset[int]
    hint: str


QUESTIONS = {
    "tile_strides": Question(
        frozenset({33, 35, 37, 39}),
        "how many banks do 32 lanes meet, if each next lane is a stride of words further on?",
    ),
}


@dataclass(frozen=True)
class Answered:
    """Whether an answer is right."""

    name: str
    passed: bool
    told: str

    def __bool__(self) -> bool:
        """Return whether the answer is right."""
        return self.passed

    def __repr__(self) -> str:
        """Return the result as text."""
        return f"{self.name}: {self.told}"

    def _repr_html_(self) -> str:
        colour = "#1a7f37" if self.passed else "#cf222e"
        return f"<b style='color: {colour}'>{html.escape(repr(self))}</b>"


def answered(name: str, answer: Any) -> Answered:
    """Check a number or several. None, Ellipsis and nothing are no answer yet."""
    question = QUESTIONS[name]
    if answer is None or answer is Ellipsis or (isinstance(answer, Iterable) and not len(list(answer))):
        return Answered(name, False, "no answer yet")
    given = {int(one) for one in np.ravel(list(answer) if isinstance(answer, Iterable) else answer)}
    if given == question.answer:
        return Answered(name, True, "right")
    wrong, missing = len(given - question.answer), len(question.answer - given)
    return Answered(name, False, f"not yet: {wrong} of yours wrong, {missing} missing; {question.hint}")
