"""Read the reference solutions, and run them for the costs that other solutions are compared with.

`solutions/NN_name.md` discusses a reference solution. Its first code block has the functions that the exercise leaves
to the student, without their docstrings.
"""

import ast
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from normlab.course import catalogue, given
from normlab.course.exercise import Drawn
from normlab.course.process import Solution

FOLDER = Path(__file__).parent / "solutions"
CODE = re.compile(r"(?ms)^```python\n(.+?\n)```$")


def discussion(number: str) -> str:
    """Return the Markdown that discusses an exercise's reference solution, code included. number: such as "23"."""
    file = FOLDER / catalogue.file(number).relative_to(catalogue.FOLDER).with_suffix(".md")
    return file.read_text(encoding="utf-8")


@cache
def source(number: str) -> str:
    """Return an exercise's file with the functions of the reference solution."""
    return filled(number, CODE.findall(discussion(number))[0])


def filled(number: str, code: str) -> str:
    """Return an exercise's file with the bodies of the functions in `code` in place of its own; docstrings stay.

    Any other statement of `code`, such as a device function with a new name, is put above the first kernel.
    """
    text, lines = catalogue.skeleton(number), code.splitlines()
    for node in ast.parse(code).body:
        if given.is_text(node):
            continue
        if isinstance(node, ast.FunctionDef) and f"def {node.name}(" in text:
            text = _with_body(text, node.name, lines[node.body[0].lineno - 1 : node.end_lineno])
        else:
            above, kernel, below = text.partition("\n\n\n@cuda.jit")
            text = "\n".join([above, *lines[given.lines_above(node) : node.end_lineno]]) + kernel + below
    return text


def _with_body(text: str, name: str, body: list[str]) -> str:
    """Return a file with `body` in place of all that follows the docstring of the function `name`."""
    (function,) = (node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == name)
    lines = text.splitlines()
    end = first = function.body[0].end_lineno or function.lineno  # the docstring's last line
    while end < len(lines) and lines[end].startswith("    "):
        end += 1  # by indentation: ast does not see the comment "# Your lines." below the function's last statement
    return "\n".join([*lines[:first], *body, *lines[end:]]) + "\n"


def costs(number: str, draws: Iterable[Drawn]) -> list[list[dict[str, Any]]]:
    """Return the costs of the reference solution's launches, one list for each input, counted by `costs.costs`."""
    return _costs(number, tuple((*drawn.sizes.items(), drawn.kind, drawn.seed) for drawn in draws))


@cache  # because all students of a class are graded on the same inputs
def _costs(number: str, draws: tuple[tuple, ...]) -> list[list[dict[str, Any]]]:
    exercise = catalogue.exercise(number)
    with Solution(source(number), str(catalogue.file(number))) as solution:
        cases = [exercise.make(Drawn(dict(sizes), kind, seed)) for *sizes, kind, seed in draws]
        return [solution.run(case, "costs").observed["costs"] for case in cases]
