"""List all exercises in order: a student gets `exercises/NN_name.py`, and `checks/name.py` describes the check."""

import re
from functools import cache
from importlib import import_module
from pathlib import Path

from normlab.course.exercise import Exercise

FOLDER = Path(__file__).parent / "exercises"
FILES = {path.name[:2]: path for path in sorted(FOLDER.glob("[0-9][0-9]_*.py"))}  # number → skeleton
PRACTICE = {path.stem: path for path in sorted((FOLDER / "practice").glob("*.py"))}  # the tutorials' own, by name
NUMBERED = re.compile(r"^[0-9]+_")  # how the name of an exercise's file begins


@cache
def exercise(number: str) -> Exercise:
    """Return the exercise with a number such as "03", or a tutorial's own with its name."""
    if number in PRACTICE:
        practice = import_module("normlab.course.checks.practice")
        return practice.EXERCISES[number]
    module = import_module(f"normlab.course.checks.{FILES[number].stem[3:]}")
    return module.EXERCISE


def skeleton(number: str) -> str:
    """Return the text of an exercise's file as a student gets it."""
    return file(number).read_text(encoding="utf-8")


def file(number: str) -> Path:
    """Return the path of an exercise's file, of a tutorial's own, too."""
    return PRACTICE[number] if number in PRACTICE else FILES[number]


def key_of(asked: str) -> str:
    """Return the key that the functions above take, for a name or a number; ValueError for an unknown exercise."""
    if asked in PRACTICE:
        return asked
    try:
        return number_of(asked)
    except ValueError as error:
        raise ValueError(f"{error}, and in the tutorials {', '.join(PRACTICE)}") from None


def number_of(asked: str) -> str:
    """Return the number that "3", "03", "03_name" or "name.py" means. Raise ValueError for an unknown exercise.

    If a number and a name do not fit, the name counts: exercises had other numbers in earlier versions.
    """
    word = asked.strip().rsplit("/", 1)[-1].removesuffix(".py")
    name = NUMBERED.sub("", word)
    for number, path in FILES.items():
        if word in (number, str(int(number))) or name == path.stem[3:]:
            return number
    raise ValueError(f"there is no exercise {asked!r}; there are {min(FILES)} to {max(FILES)}")
