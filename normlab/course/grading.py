"""One file graded: by its source, then on drawn inputs under the sanitizer, then by its budgets.

The inputs go from small to large, so the first failure is a small one; it is made smaller as long as it stays one.
Everything depends on file and seed alone, so the same seed gives the same score.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from normlab.course import catalogue, rules
from normlab.course.exercise import WORDS, Budget, Case, Drawn, Exercise
from normlab.course.hidden import Hidden
from normlab.course.process import SECONDS, Solution, StoppedError
from normlab.oracle import assert_within
from normlab.oracle.check import elementwise_ratios
from normlab.sim import METRICS

DRAWS = 12  # inputs beside the edges
TRIES = 48  # runs that making a failing input smaller may take
WARP = 32  # threads
SHOWN = 40  # elements of an input that a message prints at most
# What the sanitizer finds, causes before what may follow from them.
FIRST = [
    "barrier-divergence",
    "deadlock",
    "shuffle-mask",
    "out-of-bounds",
    "negative-index",
    "uninitialized-read",
    "race",
]
POINTS = {"right": 6, "budgets": 2, "hidden": 2}


@dataclass(frozen=True)
class Failure:
    """What went wrong: a kind, one clear line, the line of the student's file, and more lines that explain."""

    kind: str
    headline: str
    line: int | None = None
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """A graded file. `parts`: "right", "budgets", "hidden" → points, of those that the exercise has."""

    number: str
    name: str
    title: str
    parts: dict[str, int]
    failure: Failure | None
    hidden_failure: Failure | None = None
    seconds: float = 0.0
    picture: bytes | None = field(default=None, repr=False)

    @property
    def passed(self) -> bool:
        """Whether everything that the student can see holds."""
        return self.failure is None

    @property
    def points(self) -> int:
        """Points reached."""
        return sum(self.parts.values())

    @property
    def possible(self) -> int:
        """Points that could be reached."""
        return sum(POINTS[part] for part in self.parts)


class _WrongError(Exception):
    def __init__(self, failure: Failure):
        super().__init__(failure.headline)
        self.failure = failure


def check(
    number: str,
    source: str,
    file: str,
    seed: int = 0,
    hidden: Hidden | None = None,
    show: bool = False,
    seconds: float = SECONDS,
) -> Result:
    """Grade `source`, the text of `file`, as exercise `number`. `show`: draw a picture, too."""
    began = time.perf_counter()
    exercise, skeleton = catalogue.exercise(number), catalogue.skeleton(number)
    extra = hidden.of(exercise) if hidden else None
    parts = {"right": 0} | ({"budgets": 0} if exercise.budgets or exercise.lines else {})
    parts |= {"hidden": 0} if extra else {}
    failure = hidden_failure = None
    picture = None
    try:
        _obey(source, skeleton)
        with _begin(source, file, seconds) as solution:
            if show:
                picture = _picture(solution, exercise)
            _right(solution, exercise, exercise.draws(seed, DRAWS), file)
            parts["right"] = POINTS["right"]
            if extra:
                try:
                    _right(solution, exercise, extra.draws, file)
                    _within(solution, exercise, extra.budgets, file)
                    parts["hidden"] = POINTS["hidden"]
                except _WrongError as error:
                    hidden_failure = error.failure
            _within(solution, exercise, exercise.budgets, file)
            _short(exercise, source, skeleton)
            if "budgets" in parts:
                parts["budgets"] = POINTS["budgets"]
    except _WrongError as error:
        failure = error.failure
    return Result(
        number, exercise.name, exercise.title, parts, failure, hidden_failure, time.perf_counter() - began, picture
    )


def _obey(source: str, skeleton: str) -> None:
    """Hold the source to the rules."""
    if source == skeleton:
        raise _WrongError(Failure("untouched", "nothing is written yet"))
    if found := rules.broken(source, skeleton):
        raise _WrongError(Failure(found.kind, found.text, found.line))


def _begin(source: str, file: str, seconds: float) -> Solution:
    try:
        return Solution(source, file, seconds)
    except StoppedError as error:
        raise _WrongError(_stopped(error, [])) from None


def _stopped(error: StoppedError, about: list[str]) -> Failure:
    """Say why a solution did not come to its end."""
    headline = {
        "time": "took too long: is there an endless loop, or a thread that waits for what no other writes?",
        "memory": f"took too much memory: {error.text}",
        "exit": f"left by {error.text}; a kernel returns",
    }.get(error.kind, error.text)
    if "NoneType" in error.text:
        about = ["a function that ends without a return gives None: does every way through yours return?", *about]
    return Failure(error.kind, headline, error.line, (*error.notes, *about))


def _right(solution: Solution, exercise: Exercise, draws: Iterable[Drawn], file: str) -> None:
    """Run every draw; explain the first that fails, made as small as can be."""
    for drawn in draws:
        failure = _fails(solution, exercise, drawn)
        if failure is not None:
            raise _WrongError(_explained(solution, exercise, *_smallest(solution, exercise, drawn, failure), file))


def _smallest(solution: Solution, exercise: Exercise, drawn: Drawn, failure: Failure) -> tuple[Drawn, Failure]:
    """Return the smallest failing input that is found, and how it fails: in the same way."""
    tries = 0 if failure.kind in ("ended", "time") else TRIES  # there may be nobody left to ask
    while tries:
        for simpler in exercise.simpler(drawn):
            tries -= 1
            found = _fails(solution, exercise, simpler)
            if found is not None and found.kind == failure.kind:
                drawn, failure = simpler, found
                break
            if not tries:
                return drawn, failure
        else:
            break
    return drawn, failure


def _fails(solution: Solution, exercise: Exercise, drawn: Drawn) -> Failure | None:
    """Run one input under the sanitizer; the failure carries no details yet."""
    case = exercise.make(drawn)
    try:
        run = solution.run(case, "sanitize")
    except StoppedError as error:
        return _stopped(error, [])
    if findings := run.observed.get("findings"):
        return _found(min(findings, key=lambda one: FIRST.index(one["kind"])), case)
    for name, array in case.arrays.items():
        if name not in case.want and name not in case.scratch and not np.array_equal(run.arrays[name], array, True):
            return Failure("input", f"{name} is an input, and was changed: a kernel writes to its results only")
    for name, answer in case.want.items():
        try:
            assert_within(run.arrays[name], answer.value, answer.bound, name)
        except AssertionError as error:
            return Failure("values", str(error))
    return None


def _found(finding: dict[str, Any], case: Case) -> Failure:
    """Say what the sanitizer found.

    In a small input it may be lanes of one warp that race, for which a warp's barrier would do; in a larger one it is
    warps, too.
    """
    advice = finding["advice"]
    if max(np.prod(launch.block) for launch in case.launches) > WARP:
        advice = advice.replace("cuda.syncwarp()", "cuda.syncthreads()")
    where = f" on {finding['space']} {finding['array']}{finding['index']}" if finding["array"] else ""
    acts = [act for act in (finding["first"], finding["second"]) if act]
    told = [
        f"{act['operation']} by block {tuple(act['block'])}, warp {act['warp']}, lane {act['lane']}"
        + (f", at line {act['line']}: {act['text']}" if act["line"] else "")
        for act in acts
    ]
    line = next((act["line"] for act in acts if act["line"]), None)
    return Failure(finding["kind"], f"{finding['kind']}{where}: {advice}", line, tuple(told))


def _explained(solution: Solution, exercise: Exercise, drawn: Drawn, failure: Failure, file: str) -> Failure:
    """Add to a failure the input, and to wrong values what was expected, what came, and which thread wrote it."""
    case = exercise.make(drawn)
    about = [f"smallest failing input found: {drawn}"]
    results = {*case.want, *case.scratch}
    about += [
        f"  {name} = {_text(array)}"
        for name, array in case.arrays.items()
        if name not in results and array.size <= SHOWN
    ]
    if solution.printed:
        about += ["your kernel printed:", *(f"  {line}" for line in solution.printed.splitlines()[:10])]
    if failure.kind != "values":
        return Failure(failure.kind, failure.headline, failure.line, (*failure.details, *about))
    got = solution.run(case, "sanitize").arrays
    name = next(name for name, want in case.want.items() if _worst(got[name], want) is not None)
    index, wrong = _worst(got[name], case.want[name]) or ((), 0)
    element = f"{name}[{', '.join(map(str, index))}]"
    want, bound = (np.broadcast_to(part, got[name].shape)[index] for part in case.want[name])
    headline = f"{element}: expected {want:.9g}, got {got[name][index]:.9g}"
    details = [f"{wrong} of {got[name].size} elements of {name} are wrong; this one may be off by {bound:.2g}"]
    writer = solution.run(case, "writer", array=name, index=[int(one) for one in index]).observed["writer"]
    if writer is None:
        details.append("no thread wrote it")
        return Failure("values", headline, None, (*details, *about))
    details.append(
        f"written by block {tuple(writer['block'])}, warp {writer['warp']}, lane {writer['lane']}"
        + (f", at line {writer['line']}" if writer["file"] == file else "")
    )
    return Failure("values", headline, writer["line"] if writer["file"] == file else None, (*details, *about))


def _worst(got: np.ndarray, want: Any) -> tuple[tuple[int, ...], int] | None:
    """Return the first element that is off by more than its bound, and how many are; None if none is."""
    ratios = elementwise_ratios(got, np.asarray(want.value), np.broadcast_to(want.bound, got.shape))
    wrong = np.argwhere(~(ratios <= 1))
    return (tuple(map(int, wrong[0])), len(wrong)) if len(wrong) else None


def _text(array: np.ndarray) -> str:
    return np.array2string(array, max_line_width=100, precision=6, separator=", ").replace("\n", "\n      ")


def _within(solution: Solution, exercise: Exercise, budgets: Iterable[Budget], file: str) -> None:
    """Count what the solution asks of memory on one input, and hold it to its budgets."""
    if not budgets:
        return
    case: Case = exercise.make(exercise.example_case)
    try:
        traces = solution.run(case, "trace").observed["traces"]
    except StoppedError as error:
        raise _WrongError(_stopped(error, [f"on the input of the budgets: {exercise.example_case}"])) from None
    for budget in budgets:
        counted = sum(one["metrics"][budget.metric] for one in traces)
        if counted > budget.at_most:
            what = WORDS.get(budget.metric, METRICS[budget.metric].short)
            lines = [line for one in traces for line in one["lines"] if line["file"] == file]
            worst = max(lines, key=lambda line: line["metrics"][budget.metric], default=None)
            details = [f"counted on {exercise.example_case}"]
            line = None
            if worst and worst["metrics"][budget.metric]:
                line = worst["line"]
                details.append(f"{worst['metrics'][budget.metric]:,} of them at line {line}: {worst['text']}")
            headline = f"{counted:,} {what}, at most {budget.at_most:,} allowed: {budget.why}"
            raise _WrongError(Failure("budget", headline, line, tuple(details)))


def _short(exercise: Exercise, source: str, skeleton: str) -> None:
    """Hold the source to its budget of lines."""
    added = rules.added_lines(source, skeleton)
    if exercise.lines is not None and added > exercise.lines:
        raise _WrongError(Failure("lines", f"{added} lines of code added, at most {exercise.lines} allowed"))


def _picture(solution: Solution, exercise: Exercise) -> bytes | None:
    """Draw what the solution does on the input of the budgets, if it comes that far."""
    try:
        return solution.run(exercise.make(exercise.example_case), "trace", picture=exercise.picture).picture
    except StoppedError:
        return None
