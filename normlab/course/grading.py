"""Grade one file: check its source, run it on drawn inputs under the sanitizer, then count its budgets.

The inputs go from small to large, so the first failing input is small. The grader then looks for a smaller input that
fails in the same way. The draws depend only on the exercise and the seed.
"""

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from normlab.course import catalogue, failure, rules
from normlab.course.exercise import Budget, Case, Drawn, Exercise
from normlab.course.failure import Failure, FailureError
from normlab.course.hidden import Hidden
from normlab.course.process import NORMAL, Limits, Solution, StoppedError

DRAWS = 12  # random inputs, in addition to the smallest, the edges and the example
TRIES = 48  # the most runs to find a smaller failing input
POINTS = {"right": 6, "budgets": 2, "hidden": 2}


@dataclass(frozen=True)
class Result:
    """A graded file. `parts`: points for each of "right", "budgets" and "hidden" that the exercise has.

    no_picture: the reason why a requested picture could not be drawn.
    """

    number: str
    name: str
    title: str
    parts: dict[str, int]
    failure: Failure | None
    hidden_failure: Failure | None = None
    seconds: float = 0.0
    picture: bytes | None = field(default=None, repr=False)
    no_picture: str | None = None

    @property
    def passed(self) -> bool:
        """Return whether all checks that the student can see have passed."""
        return self.failure is None

    @property
    def points(self) -> int:
        """Return the points reached."""
        return sum(self.parts.values())

    @property
    def possible(self) -> int:
        """Return the points that could be reached."""
        return sum(POINTS[part] for part in self.parts)


def check(
    number: str,
    source: str,
    file: str,
    seed: int = 0,
    hidden: Hidden | None = None,
    show: bool = False,
    limits: Limits = NORMAL,
) -> Result:
    """Grade `source`, the text of `file`, as exercise `number`. `show`: draw a picture, too."""
    began = time.perf_counter()
    exercise, skeleton = catalogue.exercise(number), catalogue.skeleton(number)
    extra = hidden.of(exercise) if hidden else None
    parts = {"right": 0} | ({"budgets": 0} if exercise.budgets or exercise.lines else {})
    parts |= {"hidden": 0} if extra else {}
    seen = unseen = picture = no_picture = None
    try:
        _obey(source, skeleton)
        with _begin(source, file, limits) as solution:
            grader = _Grader(exercise, solution, file)
            if show:
                try:
                    picture = grader.picture()
                except StoppedError as error:
                    no_picture = error.text
            grader.right(exercise.draws(seed, DRAWS))
            parts["right"] = POINTS["right"]
            if extra:
                try:
                    grader.right(extra.draws)
                    grader.within(extra.budgets)
                    parts["hidden"] = POINTS["hidden"]
                except FailureError as error:
                    unseen = error.failure
            grader.within(exercise.budgets)
            grader.shared()
            _short(exercise, source, skeleton)
            if "budgets" in parts:
                parts["budgets"] = POINTS["budgets"]
    except FailureError as error:
        seen = error.failure
    seconds = time.perf_counter() - began
    return Result(number, exercise.name, exercise.title, parts, seen, unseen, seconds, picture, no_picture)


def _obey(source: str, skeleton: str) -> None:
    """Raise FailureError if the source is the skeleton itself, or breaks a rule."""
    if source == skeleton:
        raise FailureError(Failure("untouched", "nothing is written yet"))
    if broken := rules.broken(source, skeleton):
        raise FailureError(Failure(broken.kind, broken.text, broken.line))


def _begin(source: str, file: str, limits: Limits) -> Solution:
    try:
        return Solution(source, file, limits)
    except StoppedError as error:
        raise FailureError(failure.stopped(error)) from None


def _short(exercise: Exercise, source: str, skeleton: str) -> None:
    """Raise FailureError if the source has more new lines than the exercise allows."""
    added = rules.added_lines(source, skeleton)
    if exercise.lines is not None and added > exercise.lines:
        raise FailureError(Failure("lines", f"{added} lines of code added, at most {exercise.lines} allowed"))


class _Grader:
    """Runs one solution of one exercise, and raises a failure as a FailureError."""

    def __init__(self, exercise: Exercise, solution: Solution, file: str):
        self.exercise, self.solution, self.file = exercise, solution, file

    def right(self, draws: Iterable[Drawn]) -> None:
        """Run every draw. If one fails, explain the smallest failing input found."""
        for drawn in draws:
            if fails := self._fails(drawn):
                raise FailureError(self._explained(*self._smallest(drawn, fails)))

    def _fails(self, drawn: Drawn) -> Failure | None:
        """Run one input, and return its failure, if any, with the kernel's printed output."""
        fails = self._judge(self.exercise.make(drawn))
        return fails and replace(fails, printed=self.solution.printed)

    def _judge(self, case: Case) -> Failure | None:
        """Run a case under the sanitizer, and compare its arrays with the right answers."""
        try:
            run = self.solution.run(case, "sanitize")
        except StoppedError as error:
            return failure.stopped(error)
        if findings := run.observed["findings"]:
            return failure.found(findings, case, self.file)
        for name, array in case.arrays.items():
            if name not in case.want and name not in case.scratch and not np.array_equal(run.arrays[name], array, True):
                return failure.changed_input(name)
        wrong = (failure.wrong_value(name, run.arrays[name], answer) for name, answer in case.want.items())
        return next(filter(None, wrong), None)

    def _smallest(self, drawn: Drawn, fails: Failure) -> tuple[Drawn, Failure]:
        """Return the smallest input found that fails in the same way, and its failure."""
        tries = 0 if fails.kind in ("ended", "time") else TRIES  # the solution's process may have ended
        simpler = iter(self.exercise.simpler(drawn))
        while tries and (candidate := next(simpler, None)) is not None:
            tries -= 1
            again = self._fails(candidate)
            if again is not None and again.kind == fails.kind:
                drawn, fails, simpler = candidate, again, iter(self.exercise.simpler(candidate))
        return drawn, fails

    def _explained(self, drawn: Drawn, fails: Failure) -> Failure:
        """Return a failure with the thread that wrote a wrong value, the input and the kernel's output added."""
        case = self.exercise.make(drawn)
        if fails.element is not None:
            name, index = fails.element
            with suppress(StoppedError):  # the solution's time may be up; the failure is then told without the writer
                observed = self.solution.run(case, "writer", array=name, index=list(index)).observed
                fails = failure.written(fails, observed["writer"], self.file)
        return failure.on_input(fails, drawn, case)

    def within(self, budgets: Iterable[Budget]) -> None:
        """Trace the solution on the example, and raise FailureError if it exceeds one of the budgets."""
        if not budgets:
            return
        drawn = self.exercise.example_case
        try:
            traces = self.solution.run(self.exercise.make(drawn), "trace").observed["traces"]
        except StoppedError as error:
            raise FailureError(failure.stopped(error).explained(f"on the input of the budgets: {drawn}")) from None
        for budget in budgets:
            if over := failure.over_budget(budget, traces, drawn, self.file):
                raise FailureError(over)

    def shared(self) -> None:
        """Raise FailureError if one thread touches more elements of the example than the exercise allows."""
        if self.exercise.elements is None:
            return
        drawn = self.exercise.example_case
        try:
            busiest = self.solution.run(self.exercise.make(drawn), "busiest").observed["busiest"]
        except StoppedError as error:
            raise FailureError(failure.stopped(error)) from None
        if busiest["elements"] > self.exercise.elements:
            raise FailureError(failure.unshared(busiest, self.exercise.elements, drawn))

    def picture(self) -> bytes | None:
        """Return a picture of the solution on the example. Raise StoppedError if the solution does not finish."""
        case = self.exercise.make(self.exercise.example_case)
        return self.solution.run(case, "trace", picture=self.exercise.picture).picture
