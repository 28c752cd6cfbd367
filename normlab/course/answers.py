"""Check answers to the questions that the tutorials ask: numbers, and sets of numbers."""

import html
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


class Question(NamedTuple):
    """A question of a tutorial: its answer, which is one number or several, and a hint for a wrong one."""

    answer: frozenset[int]
    hint: str


QUESTIONS = {
    "tile_strides": Question(
        frozenset({33, 35, 37, 39}), "which banks do lanes meet that are a stride of words apart?"
    ),
    "columns_at_risk": Question(frozenset({1, 3, 4}), "two conditions: |γ| < ε, and |β| > 8 |γ|"),
    "caught_by_unequal_groups": Question(frozenset({3}), "count the fields with FAILS in the test's column"),
    "sectors_by_columns": Question(frozenset({9216}), "trace the launch as the tutorial does, with a.T.copy().T for a"),
    "tall_warp": Question(frozenset({12}), "replace the step's ways by a plan with the new tiling, and trace it"),
    "floats_of_rms_norm": Question(frozenset({2}), "which sum does each pass need, if no mean is subtracted?"),
    "matrices_spared": Question(
        frozenset({6}), "how many less does a pair move forward, how many backward, and how many pairs are there?"
    ),
    "kept_columns": Question(frozenset({0}), "which of the two conditions does γ = 1, β = 0 meet?"),
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
    """Check a number or several; TypeError for anything else. None, Ellipsis and nothing are no answer yet."""
    question = QUESTIONS[name]
    if answer is None or answer is Ellipsis:
        return Answered(name, False, "no answer yet")
    counted = isinstance(answer, Iterable) and not isinstance(answer, str | bytes) and not hasattr(answer, "__array__")
    answer = list(answer) if counted else answer  # NumPy takes a set or a generator for one object
    try:
        numbers = np.ravel(answer)
    except ValueError:  # rows of several lengths
        numbers = np.array([None])
    if not numbers.size:
        return Answered(name, False, "no answer yet")
    if numbers.dtype.kind not in "iuf":
        raise TypeError(f"course.check(answer, {name!r}) needs a number, or several, not {answer!r}")
    given = {float(one) for one in numbers}
    if given == question.answer:
        return Answered(name, True, "right")
    wrong, missing = len(given - question.answer), len(question.answer - given)
    return Answered(name, False, f"not yet: {wrong} of yours wrong, {missing} missing; {question.hint}")
