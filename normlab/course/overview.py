"""Say where a class stands: how each exercise went, where each student is stuck, which mistakes are common."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from statistics import mean, median

from normlab.course import catalogue
from normlab.course.failure import Failure
from normlab.course.grading import Result
from normlab.course.ranking import Place, ranking

# The states of a student's exercise, the best first, with what they mean.
STATES = {
    "solved": "full points",
    "costly": "right, but not all points: over the budget, or hidden checks fail",
    "wrong": "no right results, or no kernel",
    "not begun": "the exercise's file as it was handed out",
    "missing": "no file that could be read",
}
NO_MISTAKES = {"untouched": "not begun", "missing": "missing"}  # kinds of failures that say that nothing was tried


@dataclass(frozen=True)
class Student:
    """One student's results, in the exercises' order, and remarks on the files that were handed in."""

    name: str
    results: list[Result]
    remarks: tuple[str, ...] = ()

    @property
    def points(self) -> int:
        """Return the points reached."""
        return sum(result.points for result in self.results)

    @property
    def possible(self) -> int:
        """Return the points that could be reached."""
        return sum(result.possible for result in self.results)

    @property
    def solved(self) -> int:
        """Return how many exercises are solved."""
        return len(self.numbers("solved"))

    def numbers(self, wanted: str) -> list[str]:
        """Return the numbers of the exercises that are in one of STATES."""
        return [result.number for result in self.results if state(result) == wanted]

    @property
    def stuck_at(self) -> Result | None:
        """Return the first exercise that was begun and is wrong; else the first that is too costly; else None."""
        for wanted in ("wrong", "costly"):
            for result in self.results:
                if state(result) == wanted:
                    return result
        return None


@dataclass(frozen=True)
class Summary:
    """How an exercise went: the names of the students in each of STATES."""

    number: str
    title: str
    states: dict[str, list[str]]


@dataclass(frozen=True)
class Mistake:
    """A failure with the same message in the same exercise, and the students who met with it."""

    number: str
    title: str
    kind: str
    text: str
    students: list[str]
    hidden: bool


def state(result: Result) -> str:
    """Return one of STATES."""
    if result.points == result.possible:
        return "solved"
    if result.parts["right"]:
        return "costly"
    assert result.failure is not None, "a result without its points has a failure"
    return NO_MISTAKES.get(result.failure.kind, "wrong")


def failures(result: Result) -> list[tuple[Failure, bool]]:
    """Return a result's failures, each with whether only hidden checks show it."""
    found = [(result.failure, False), (result.hidden_failure, True)]
    return [(failure, hidden) for failure, hidden in found if failure is not None]


def summaries(graded: list[Student]) -> list[Summary]:
    """Return how each exercise went, in the exercises' order."""
    found = []
    for place, number in enumerate(catalogue.FILES):
        states: dict[str, list[str]] = {one: [] for one in STATES}
        for student in graded:
            states[state(student.results[place])].append(student.name)
        found.append(Summary(number, catalogue.exercise(number).title, states))
    return found


def mistakes(graded: list[Student]) -> list[Mistake]:
    """Return all failures, equal ones counted together, the most common first.

    Two are equal if exercise and message are the same; the line in the student's file may be another one. All students
    have the same inputs, so the same mistake often gives the same message, numbers included.
    """
    found: defaultdict[tuple, list[str]] = defaultdict(list)
    for student in graded:
        for result in student.results:
            for failure, hidden in failures(result):
                if failure.kind not in NO_MISTAKES:
                    found[result.number, result.title, failure.kind, failure.headline, hidden].append(student.name)
    listed = [
        Mistake(number, title, kind, text, names, hidden)
        for (number, title, kind, text, hidden), names in found.items()
    ]
    return sorted(listed, key=lambda one: (-len(one.students), one.number, one.text, one.hidden))


def rankings(graded: list[Student]) -> dict[str, list[Place]]:
    """Return the ranking of each exercise that any student has solved, by the exercise's number."""
    found = {}
    for place, number in enumerate(catalogue.FILES):
        results = [(student.name, student.results[place].cost) for student in graded]
        if entries := [(name, cost) for name, cost in results if cost is not None]:
            found[number] = ranking(entries)
    return found


@dataclass(frozen=True)
class Figures:
    """A class in a few numbers. `points`: how many students reached each tenth of the possible points."""

    students: int
    possible: int
    mean: float
    median: float
    points: list[int]


def figures(graded: list[Student]) -> Figures:
    """Return the numbers of a class that has a student at least."""
    reached, possible = [student.points for student in graded], graded[0].possible
    tenths = Counter(min(9, 10 * points // possible) for points in reached)
    return Figures(len(graded), possible, mean(reached), median(reached), [tenths[tenth] for tenth in range(10)])
