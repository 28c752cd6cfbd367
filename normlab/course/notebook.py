"""Check a kernel that is defined in a notebook's cell or in a Python file: `normlab.course.check`.

The kernel's source, with the functions and numbers that it names, is put into the exercise's file in place of the
functions to write. The file is graded as any other. Messages name the lines of the cell or file that has the kernel.
"""

import ast
import html
import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent, indent
from typing import Any, NamedTuple

import numpy as np

from normlab.course import answers, catalogue, discussion, folder, given, grading, rules
from normlab.course.exercise import Exercise
from normlab.course.failure import told
from normlab.course.grading import Result

IMPORTS = {  # what a solution may import beside the exercise's own
    "math": "import math",
    "np": "import numpy as np",
    "numpy": "import numpy",
    "float32": "from normlab.engine import float32",
}
NUMBERS = bool | int | float | np.number


class Written(NamedTuple):
    """A function of a student's: its name, its source, and the number of the source's first line where it stands."""

    name: str
    source: str
    line: int


@dataclass(frozen=True)
class Checked:
    """The result of `check`, which shows itself as text, and in a notebook as HTML with a picture."""

    result: Result
    source: str  # the graded file
    lines: dict[int, int]  # line of the graded file → line of the cell or file where the student wrote it
    where: str

    @property
    def passed(self) -> bool:
        """Return whether all checks have passed."""
        return self.result.passed

    def __bool__(self) -> bool:
        """Return whether all checks have passed."""
        return self.passed

    def __repr__(self) -> str:
        """Return the result as text: what is wrong, where, and for which input; or what comes next."""
        return "\n".join([self._head(), *(f"  {line}" for line in self._text()), *map(_shown, self._ways())])

    def _repr_html_(self) -> str:
        """Return the result as a notebook shows it, with the picture."""
        colour = "#1a7f37" if self.passed else "#cf222e"
        parts = [f"<b style='color: {colour}'>{html.escape(self._head())}</b>"]
        parts.append(f"<pre style='white-space: pre-wrap'>{html.escape(chr(10).join(self._text()))}</pre>")
        if self.result.picture is not None:
            picture = self.result.picture.decode("utf-8")
            parts.append(f"<div style='background: white'>{picture[picture.index('<svg') :]}</div>")
            parts.append(f"<p>What to look for: {html.escape(_exercise(self.result).picture.look)}</p>")
        elif self.result.no_picture is not None:
            parts.append(f"<p>No picture of it: {html.escape(self.result.no_picture)}</p>")
        for way in self._ways():
            shown = f"<p>{html.escape(way.text)}</p><pre>{html.escape(way.code)}</pre>"
            parts.append(f"<details><summary>{html.escape(way.title)}</summary>{shown}</details>")
        return f"<div>{''.join(parts)}</div>"

    def _head(self) -> str:
        result = self.result
        state = "solved" if result.passed else "not yet"
        return f"{result.title}: {state} ({result.points} of {result.possible} points)"

    def _text(self) -> list[str]:
        result = self.result
        if result.failure is None:
            after = [discussion.next_step(result.number)] if result.number in catalogue.FILES else []
            return [discussion.standing(result.spent), *after]
        headline, *details = self._placed(told(result.failure, self.where)).splitlines()
        line = result.failure.line
        at = [f"    {self.source.splitlines()[line - 1].strip()}"] if line in self.lines else []
        return [headline, *at, *details, f"a hint: {_exercise(result).hints[0]}"]

    def _placed(self, text: str) -> str:
        """Return a message with the line numbers of the place where the student wrote."""
        text = re.sub(rf"\({re.escape(self.where)}:(\d+)\)", rf"(line \1 of {self.where})", text)
        # a line "of block.py, which you call" keeps its number
        line = (
            rf"\b(lines? )(\d+)(?:( to | or )(\d+))?\b(?= of (?:your file|{re.escape(self.where)})|(?! of | to | or ))"
        )
        return re.sub(line, self._line, text)

    def _line(self, found: re.Match[str]) -> str:
        word, first, between, last = found.groups()
        told = f"{word}{self.lines.get(int(first), first)}"
        return f"{told}{between}{self.lines.get(int(last), last)}" if between else told

    def _ways(self) -> list[discussion.Way]:
        shows = self.passed and self.result.number in catalogue.FILES and folder.shows_solutions(Path())
        return discussion.ways(self.result.number) if shows else []


def _exercise(result: Result) -> Exercise:
    return catalogue.exercise(result.number)


def _shown(way: discussion.Way) -> str:
    return f"\n  {way.title}: {way.text}\n\n{indent(way.code, '      ')}"


def checked(kernel: Any, name: str, seed: int) -> Checked | answers.Answered:
    """Check a kernel, several functions, or an answer; see `normlab.course.check`."""
    if name in answers.QUESTIONS:
        return answers.answered(name, kernel)
    key = catalogue.key_of(name)
    if type(seed) is not int or seed < 0:
        raise ValueError(f"course.check(kernel, {name!r}, seed={seed!r}): seed is a number from 0 on")
    functions = kernel if isinstance(kernel, tuple | list) else [kernel]
    own = [_python(function, name) for function in functions]
    skeleton = catalogue.skeleton(key)
    written = _fitted(own, skeleton, name)
    source, lines = _file(skeleton, written, _used(own, skeleton))
    file = "your kernel" if len(own) == 1 else "your functions"
    if rules.broken(source, skeleton) is None and not given.added_lines(source, skeleton):
        source = skeleton  # nothing is written yet
    result = grading.check(key, source, file, seed=seed, show="svg")
    return Checked(result, source, lines, file)


def _python(kernel: Any, name: str) -> Any:
    """Return the Python function of a kernel. Raise TypeError for something else."""
    function = getattr(kernel, "py_func", kernel)
    if not inspect.isfunction(function):
        raise TypeError(f"course.check(kernel, {name!r}) needs a kernel, as @cuda.jit makes it, not {kernel!r}")
    return function


def _read(function: Any) -> Written:
    """Return a function's source. Raise ValueError if there is none."""
    try:
        lines, first = inspect.getsourcelines(function)
    except OSError:
        raise ValueError(
            f"the source of {function.__name__} cannot be read: define it in a file, or in a cell without %%time"
        ) from None
    return Written(function.__name__, dedent("".join(lines)), max(first, 1))


def _to_write(skeleton: str) -> dict[str, list[str]]:
    """Return the functions of an exercise in which there is something to write, with their parameters."""
    found = {}
    for node in given.marked(skeleton).body:
        if isinstance(node, ast.FunctionDef) and given.MARK in ast.unparse(node):
            found[node.name] = [argument.arg for argument in node.args.args]
    return found


def _fitted(functions: list[Any], skeleton: str, name: str) -> list[Written]:
    """Return the sources of a student's functions, under the names that the exercise has for them."""
    wanted, fitted = _to_write(skeleton), []
    for function in functions:
        one = _read(function)
        if one.name not in wanted:
            count = function.__code__.co_argcount
            (new, *more) = [key for key, parameters in wanted.items() if len(parameters) == count] or [""]
            if not new or more or len(functions) != 1:
                asked = " and ".join(f"{key}({', '.join(parameters)})" for key, parameters in wanted.items())
                raise ValueError(f"{name} asks for {asked}; {one.name} has {count} parameters")
            one = Written(new, re.sub(rf"\bdef {one.name}\(", f"def {new}(", one.source, count=1), one.line)
        fitted.append(one)
    if missing := wanted.keys() - {one.name for one in fitted}:
        raise ValueError(f"{name} asks for {', '.join(wanted)}, as a tuple: {', '.join(sorted(missing))} is missing")
    return fitted


def _used(functions: list[Any], skeleton: str) -> list[Written]:
    """Return the student's functions and numbers that `functions` name and the exercise's file does not have."""
    known = {name for node in ast.parse(skeleton).body for name in rules.bound(node)}
    known |= {one.__name__ for one in functions}
    found: dict[str, Written] = {}
    waiting = list(functions)
    while waiting:
        function = waiting.pop()
        for name in sorted(set(function.__code__.co_names) - known - found.keys()):
            value = function.__globals__.get(name)
            if isinstance(value, NUMBERS):
                found[name] = Written(
                    name, f"{name} = {value.item() if isinstance(value, np.number) else value!r}\n", 1
                )
            elif name in IMPORTS:
                found[name] = Written(name, f"{IMPORTS[name]}\n", 1)
            elif (helper := getattr(value, "py_func", None)) and not helper.__module__.startswith("normlab."):
                found[name] = _read(helper)  # the library's own functions are imported by the exercise
                waiting.append(helper)
    return list(found.values())


def _file(skeleton: str, written: list[Written], used: list[Written]) -> tuple[str, dict[int, int]]:
    """Return the exercise's file with a student's functions, and where each of their lines comes from."""
    lines = skeleton.splitlines()
    nodes = ast.parse(skeleton).body
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    places = {one.name: one for one in written}
    parts: list[tuple[str, int | None]] = []
    first = min(map(given.lines_above, functions))
    _append(parts, "\n".join(lines[:first]) + "\n")
    for one in sorted(used, key=lambda one: one.source.startswith(("@", "def "))):
        _append(parts, one.source, one.line)
    for node, after in zip(functions, [*functions[1:], None], strict=True):
        end = given.lines_above(after) if after else len(lines)
        if node.name in places:
            _append(parts, places[node.name].source, places[node.name].line)
            _append(parts, "\n\n")
        else:
            _append(parts, "\n".join(lines[given.lines_above(node) : end]) + "\n")
    text = "\n".join(line for line, _ in parts) + "\n"
    return text, {number: line for number, (_, line) in enumerate(parts, 1) if line is not None}


def _append(parts: list[tuple[str, int | None]], text: str, first: int | None = None) -> None:
    for offset, line in enumerate(text.splitlines()):
        parts.append((line, None if first is None else first + offset))
