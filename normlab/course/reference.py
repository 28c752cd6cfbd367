"""Run the reference solutions, whose costs other solutions are compared with."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from normlab.course import catalogue
from normlab.course.exercise import Drawn
from normlab.course.process import Solution

FOLDER = Path(__file__).parent / "solutions"


def path(number: str) -> Path:
    """Return the path of an exercise's reference solution."""
    return FOLDER / catalogue.file(number).relative_to(catalogue.FOLDER)


def costs(number: str, draws: Iterable[Drawn]) -> list[list[dict[str, Any]]]:
    """Return what the reference solution's launches cost on some inputs, as `costs.costs` counts it."""
    return _costs(number, tuple((*drawn.sizes.items(), drawn.kind, drawn.seed) for drawn in draws))


@cache  # a class is graded on the same inputs
def _costs(number: str, draws: tuple[tuple, ...]) -> list[list[dict[str, Any]]]:
    exercise, file = catalogue.exercise(number), path(number)
    with Solution(file.read_text(encoding="utf-8"), str(file)) as solution:
        cases = [exercise.make(Drawn(dict(sizes), kind, seed)) for *sizes, kind, seed in draws]
        return [solution.run(case, "costs").observed["costs"] for case in cases]
