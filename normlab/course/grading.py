"""Grade one file: check its source, run it under the sanitizer, compile it, and compare its costs with a reference.

The inputs depend only on the exercise and the seed. They go from small to large, so the first failing input is small.
The grader then looks for a smaller input that fails in the same way. Costs, such as the number of barriers, are counted
on inputs of their own: of several sizes, with values from the seed. The results of these launches are checked, too.
"""

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from normlab.course import catalogue, failure, given, pictures, ranking, reference, rules
from normlab.course.exercise import Budget, Case, Drawn, Exercise
from normlab.course.failure import Failure, FailureError, Source, Spent
from normlab.course.hidden import Hidden
from normlab.course.process import NORMAL, Limits, Run, Solution, StoppedError

DRAWS = 12  # random inputs, in addition to the smallest, the edges and the example
COUNTED = 2  # random inputs on which costs are counted, in addition to one of the example's sizes
TRIES = 48  # the most runs to find a smaller failing input
MOST_LINES = 500  # of code that a solution may add; right ones here add 28 at most
POINTS = {"right": 6, "budgets": 2, "hidden": 2}


@dataclass(frozen=True)
class Result:
    """A graded file.

    `parts`: the points reached in each part. "right": the results on the drawn inputs, of a kernel that compiles;
    "budgets": its costs; "hidden": inputs and budgets that only a teacher's file has (`hidden.py`).
    `failure`: the first failure in the parts that the student can see. `hidden_failure`: that of "hidden".
    `cost`: what a solved exercise's launches cost, for a ranking.
    `picture`: the bytes of a requested picture. `no_picture`: why it could not be drawn.
    `spent`: what a right solution costs on an input of the example's sizes.
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
    spent: tuple[Spent, ...] = ()
    cost: ranking.Cost | None = None

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
    show: str | None = None,
    limits: Limits = NORMAL,
) -> Result:
    """Grade `source`, the text of `file`, as exercise `number`.

    `hidden`: a teacher's further inputs and budgets. `show`: the form of a picture to draw, too, "png" or "svg". A
    failure in the hidden part does not end the grading, any other failure does.
    """
    began = time.perf_counter()
    exercise, skeleton = catalogue.exercise(number), catalogue.skeleton(number)
    extra = hidden.of(exercise) if hidden else None
    parts = {"right": 0, "budgets": 0} | ({"hidden": 0} if extra else {})
    seen = unseen = picture = no_picture = cost = None
    spent: tuple[Spent, ...] = ()
    try:
        _obey(source, skeleton)
        with _begin(source, file, limits) as solution:
            grader = _Grader(exercise, solution, Source(source, file, skeleton))
            if show:
                try:
                    picture = grader.picture(show)
                except (StoppedError, ValueError, LookupError) as error:
                    no_picture = getattr(error, "text", str(error))
            grader.right(exercise.draws(seed, DRAWS))
            grader.compiles()
            parts["right"] = POINTS["right"]
            if extra:
                try:
                    grader.right(extra.draws)
                    grader.spends(number, extra.counted)
                    grader.within(extra.budgets)
                    parts["hidden"] = POINTS["hidden"]
                except FailureError as error:
                    unseen = failure.at_loop(error.failure, grader.source)
            spent, launches = grader.spends(number, exercise.counted(seed, COUNTED))
            _short(exercise, source, skeleton)
            _obey_last(source, skeleton)
            parts["budgets"] = POINTS["budgets"]
            cost = None if unseen else ranking.cost(launches)
    except FailureError as error:
        own = Source(source, file, skeleton)
        seen = failure.in_own_lines(failure.at_loop(error.failure, own), own)
    seconds = time.perf_counter() - began
    result = Result(number, exercise.name, exercise.title, parts, seen, unseen, seconds, picture, no_picture)
    return replace(result, spent=spent, cost=cost)


def need_solvable(hidden: Hidden) -> None:
    """Raise ValueError if a reference solution fails one of the cases in an instructor's file: each student would."""
    for name, table in hidden.tables.items():
        number = catalogue.number_of(name)
        exercise = catalogue.exercise(number)
        source = Source(reference.source(number), f"the reference solution of {name}", catalogue.skeleton(number))
        cases = hidden.cases(exercise)
        if not cases:
            continue
        with _begin(source.text, source.file, NORMAL) as solution:
            for asked, drawn in zip(table["cases"], cases, strict=True):
                if fails := _Grader(exercise, solution, source).fails(drawn):
                    why = f"the reference solution fails the case {asked!r}: {fails.headline}"
                    raise ValueError(f"hidden [{name}]: {why}")


def _obey(source: str, skeleton: str) -> None:
    """Raise FailureError if the source breaks a rule, or adds nothing but comments to what the student was given."""
    if broken := rules.broken(source, skeleton):
        raise FailureError(Failure(broken.kind, broken.text, broken.line))
    added = given.added_lines(source, skeleton)
    if added == 0:
        raise FailureError(Failure("untouched", "nothing is written yet"))
    if added > MOST_LINES:
        raise FailureError(
            Failure("lines", f"{added:,} lines of code added, at most {MOST_LINES} are compiled: more take minutes")
        )


def _begin(source: str, file: str, limits: Limits) -> Solution:
    """Start the solution's process. Raise FailureError if the file's code does not finish loading."""
    try:
        return Solution(source, file, limits)
    except StoppedError as error:
        raise FailureError(failure.stopped(error)) from None


def _short(exercise: Exercise, source: str, skeleton: str) -> None:
    """Raise FailureError if the source has more new lines than the exercise allows."""
    added = given.added_lines(source, skeleton)
    if exercise.lines is not None and added > exercise.lines:
        raise FailureError(Failure("lines", f"{added} lines of code added, at most {exercise.lines} allowed"))


def _obey_last(source: str, skeleton: str) -> None:
    """Raise FailureError if a function that the exercise asks for is not called, which no result shows."""
    if broken := rules.unused(source, skeleton):
        raise FailureError(Failure(broken.kind, broken.text, broken.line))


class _Grader:
    """Runs one solution of one exercise. Each check raises FailureError if the solution fails it."""

    def __init__(self, exercise: Exercise, solution: Solution, source: Source):
        self.exercise, self.solution, self.source = exercise, solution, source

    def right(self, draws: Iterable[Drawn]) -> None:
        """Run every draw. If one fails, explain the smallest failing input found."""
        for drawn in draws:
            if fails := self.fails(drawn):
                raise FailureError(self._explained(*self._smallest(drawn, fails)))

    def fails(self, drawn: Drawn) -> Failure | None:
        """Run one input; return its failure with the kernel's printed output added, or None if it passes."""
        fails = self._judge(self.exercise.make(drawn))
        return fails and replace(fails, printed=self.solution.printed)

    def _judge(self, case: Case) -> Failure | None:
        """Run a case under the sanitizer; return its failure, or None.

        In this order: the solution did not finish; a finding of the sanitizer; a changed input; a wrong value.
        """
        try:
            run = self.solution.run(case, "sanitize")
        except StoppedError as error:
            return failure.stopped(error)
        if findings := run.observed["findings"]:
            return failure.found(findings, case, self.source)
        return _differs(run, case, self.source)

    def _smallest(self, drawn: Drawn, fails: Failure) -> tuple[Drawn, Failure]:
        """Return the smallest input found with a failure of the same kind, and this failure.

        `Exercise.simpler` lists inputs that are simpler in one respect, the simplest first. The search takes the first
        of them that fails in the same way, and goes on from it, until none does or TRIES runs are used up.
        """
        tries = 0 if fails.kind in ("ended", "time") else TRIES  # the process may be gone, and its time used up
        simpler = iter(self.exercise.simpler(drawn))
        while tries and (candidate := next(simpler, None)) is not None:
            tries -= 1
            again = self.fails(candidate)
            if again is not None and again.kind == fails.kind:
                drawn, fails, simpler = candidate, again, iter(self.exercise.simpler(candidate))
        return drawn, fails

    def _explained(self, drawn: Drawn, fails: Failure) -> Failure:
        """Return a failure with details added: the input and, for a wrong value, the thread that wrote it.

        The solution runs once more to find the thread, now with a watch on the wrong element.
        """
        case = self.exercise.make(drawn)
        if fails.element is not None:
            name, index = fails.element
            with suppress(StoppedError):  # if the solution's time is up, the failure does not name the writer
                observed = self.solution.run(case, "writer", array=name, index=list(index)).observed
                fails = failure.written(fails, observed["writer"], self.source)
        return failure.on_input(fails, drawn, case, self.source)

    def compiles(self) -> None:
        """Raise FailureError if Numba refuses a kernel, as it would on a machine with a GPU.

        A flag may choose the dtype of an argument, so the kernel is compiled for all types that the examples have.
        """
        for case in _of_other_types(map(self.exercise.make, self.exercise.branches)):
            try:
                refused = self.solution.run(case, "compile").observed["refused"]
            except StoppedError as error:
                raise FailureError(failure.stopped(error, late="Numba takes too long to compile it")) from None
            if refused:
                raise FailureError(failure.refused(refused))

    def spends(self, number: str, draws: list[Drawn]) -> tuple[tuple[Spent, ...], list[dict[str, Any]]]:
        """Return the costs on the first of the inputs beside their budgets, and what each launch of all inputs cost.

        Raise FailureError if the solution costs more than the reference solution on one of them.
        """
        spent, launches = [], []
        for drawn, reference_costs in zip(draws, reference.costs(number, draws), strict=True):
            case = self.exercise.make(drawn)
            try:
                run = self.solution.run(case, "costs")
            except StoppedError as error:
                raise FailureError(failure.stopped(error).explained(f"on an input of the budgets: {drawn}")) from None
            if wrong := _differs(run, case, self.source):
                raise FailureError(self._explained(drawn, wrong))
            costs = run.observed["costs"]
            # The exercise's own costs come first: the failure names the worst excess among them. Costs that count in
            # every exercise, such as sectors of global memory, are looked at if none of the exercise's own is too high.
            own, others = self.exercise.costs, self.exercise.other_costs
            counted = costs, reference_costs, drawn, self.source
            over = [failure.uneven(own, *counted), failure.costs_more(own, *counted)]
            worst = max(filter(None, over), key=lambda one: one.excess, default=None)
            if worst := worst or failure.costs_more(others, *counted):
                raise FailureError(worst)
            spent.append(failure.spent((*others, *own), costs, reference_costs))
            launches += costs
        return spent[0], launches

    def within(self, budgets: Iterable[Budget]) -> None:
        """Raise FailureError if the solution exceeds one of a teacher's budgets on the exercise's example."""
        if not budgets:
            return
        drawn = self.exercise.example_case
        try:
            costs = self.solution.run(self.exercise.make(drawn), "costs").observed["costs"]
        except StoppedError as error:
            raise FailureError(failure.stopped(error).explained(f"on the input of the budgets: {drawn}")) from None
        for budget in budgets:
            if over := failure.over_budget(budget, costs, drawn, self.source):
                raise FailureError(over)

    def picture(self, form: str) -> bytes | None:
        """Return a picture of what the solution does. Raise StoppedError if the solution does not finish.

        Raise ValueError or LookupError if the solution does nothing that could be drawn.
        """
        picture = self.exercise.picture
        case = None if isinstance(picture, str) or picture.case is None else picture.case()
        case = case or self.exercise.make(self.exercise.example_case)
        draw = picture if isinstance(picture, str) else picture.draw
        if isinstance(draw, str):
            return self.solution.run(case, "trace", picture=(draw, form)).picture
        run = self.solution.run(case, "accesses")
        return pictures.file_of(draw(pictures.Seen(case, run.arrays, run.observed["accesses"])), form)


def _of_other_types(cases: Iterable[Case]) -> Iterable[Case]:
    """Return the first case of those whose arrays have the same dtypes."""
    return {tuple(array.dtype.str for array in case.arrays.values()): case for case in reversed([*cases])}.values()


def _differs(run: Run, case: Case, source: Source) -> Failure | None:
    """Return the failure of a run that changed an input or left a wrong value; None if it did neither."""
    for name, array in case.arrays.items():
        if name not in case.want and name not in case.scratch and not np.array_equal(run.arrays[name], array, True):
            return failure.changed_input(name, source)
    wrong = (failure.wrong_value(name, run.arrays[name], answer) for name, answer in case.want.items())
    return next(filter(None, wrong), None)
