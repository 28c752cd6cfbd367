"""Read an instructor's hidden checks, which are not shipped: a TOML file with more inputs and more budgets.

seed = 8231                    # the seed of the hidden draws of all exercises
draws = 10                     # more inputs for every exercise

[welford_step]                 # for the exercise with this name
draws = 20
cases = [{rows = 3, columns = 77, kind = "offset"}]
budgets = {"normlab__barriers.sum" = 4}
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normlab.course import catalogue
from normlab.course.exercise import Budget, Drawn, Exercise
from normlab.sim import METRICS

DRAWS = 12
COUNTED = 2  # inputs on which costs are counted
TABLE = {"draws": int, "cases": list, "budgets": dict}


@dataclass(frozen=True)
class Extra:
    """The hidden inputs and budgets of one exercise."""

    draws: list[Drawn]
    counted: list[Drawn]  # on which costs are compared with the reference solution's
    budgets: list[Budget]


@dataclass(frozen=True)
class Hidden:
    """A file of hidden checks."""

    seed: int
    draws: int
    tables: dict[str, dict[str, Any]]

    def of(self, exercise: Exercise) -> Extra:
        """Return the hidden inputs and budgets of an exercise."""
        table = self.tables.get(exercise.name, {})
        draws = exercise.draws(self.seed, table.get("draws", self.draws))
        draws += self.cases(exercise)
        budgets = [Budget(name, most, "a hidden budget") for name, most in table.get("budgets", {}).items()]
        return Extra(draws, exercise.counted(self.seed, COUNTED)[1:], budgets)

    def cases(self, exercise: Exercise) -> list[Drawn]:
        """Return the inputs that the file names for an exercise."""
        found = []
        for number, case in enumerate(self.tables.get(exercise.name, {}).get("cases", [])):
            sizes = {name: size for name, size in case.items() if name != "kind"}
            found.append(Drawn(sizes, case.get("kind", exercise.kinds[0]), self.seed + number))
        return found


def read(path: Path) -> Hidden:
    """Return the checks of a file. Raise OSError if it cannot be read, and ValueError if its content is wrong."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # a Windows editor may put a mark first
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from None
    numbers = {name: content.pop(name, otherwise) for name, otherwise in (("seed", 0), ("draws", DRAWS))}
    for name, number in numbers.items():
        if type(number) is not int or number < 0:
            raise ValueError(f"{path}: {name} is a number from 0 on, not {number!r}")
    exercises = {one.name: one for one in map(catalogue.exercise, catalogue.FILES)}
    for name, table in content.items():
        if name not in exercises:
            raise ValueError(f"{path}: there is no exercise {name!r}; there are {', '.join(exercises)}")
        _check(f"{path}, [{name}]", exercises[name], table)
    return Hidden(**numbers, tables=content)


def _check(where: str, exercise: Exercise, table: Any) -> None:
    """Raise ValueError unless an exercise's table has valid draws, cases and budgets only."""
    if not isinstance(table, dict):
        raise ValueError(f"{where}: a table is needed, not {table!r}")
    for key, value in table.items():
        if key not in TABLE or type(value) is not TABLE[key] or (isinstance(value, int) and value < 0):
            raise ValueError(
                f"{where}: {key} = {value!r}: a table has draws (a number from 0 on), cases (a list), budgets (a table)"
            )
    for case in table.get("cases", []):
        sizes = {name: size for name, size in case.items() if name != "kind"} if isinstance(case, dict) else {}
        if sizes.keys() != exercise.sizes.keys() or case.get("kind", exercise.kinds[0]) not in exercise.kinds:
            raise ValueError(
                f"{where}: a case has {', '.join(exercise.sizes)}, and may have a kind of {', '.join(exercise.kinds)}; "
                f"not {case!r}"
            )
        for name, size in sizes.items():
            if type(size) is not int or size < exercise.sizes[name].smallest:
                raise ValueError(f"{where}: {name} is a number from {exercise.sizes[name].smallest} on, not {size!r}")
    for metric, most in table.get("budgets", {}).items():
        if metric not in METRICS:
            raise ValueError(f"{where}: there is no metric {metric!r}; normlab.sim.METRICS has them all")
        if type(most) is not int or most < 0:
            raise ValueError(f"{where}: {metric} is a number from 0 on, not {most!r}")
