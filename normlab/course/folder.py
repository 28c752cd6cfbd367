"""Manage a student's folder: its exercise files, which exercises are solved, and how many hints were read."""

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normlab.course import catalogue
from normlab.course.failure import Failure
from normlab.course.grading import Result, check

# In the student's folder: {"solved": {name: digest}, "hints": {name: count}, "solutions": may they be shown?}
MEMORY = ".normlab-course.json"
MOVED = 6  # earlier versions saved numbers in place of names; today's number of the same exercise is so much larger
LARGEST = 200_000  # bytes that a solution may have


def start(folder: Path) -> tuple[list[str], list[str]]:
    """Write the exercise files that `folder` does not have; return the names of files written, and of files kept."""
    folder.mkdir(parents=True, exist_ok=True)
    written, kept = [], []
    for number in catalogue.FILES:
        target = file_of(folder, number)
        if target.exists():
            kept.append(target.name)
        else:
            target.write_text(catalogue.skeleton(number), encoding="utf-8")
            written.append(target.name)
    return written, kept


def file_of(folder: Path, number: str) -> Path:
    """Return the path of an exercise's file in `folder`, also if it has the number of an earlier version there."""
    path = folder / catalogue.FILES[number].name
    earlier = sorted(folder.glob(f"[0-9][0-9]_{path.name[3:]}"))
    return path if path.exists() or not earlier else earlier[0]


def is_course(folder: Path) -> bool:
    """Return True if there is any exercise in `folder`."""
    return any(file_of(folder, number).exists() for number in catalogue.FILES)


def graded(folder: Path, number: str, by: Callable[..., Result] = check, **how: Any) -> Result:
    """Grade an exercise of `folder`; an unreadable file is a failure, too.

    by: what grades the file's text, as `grading.check` does. how: options of `grading.check`.
    """
    path = file_of(folder, number)
    if not path.exists():
        return _unread(number, Failure("missing", f"there is no {path.name}"), how)
    if path.is_symlink() or not path.is_file():
        return _unread(number, Failure("missing", f"{path.name} is no plain file"), how)
    if path.stat().st_size > LARGEST:
        return _unread(number, Failure("syntax", f"{path.name} has more than {LARGEST:,} bytes"), how)
    try:
        source = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        return _unread(number, Failure("missing", f"{path.name} cannot be read: {error.strerror}"), how)
    except UnicodeDecodeError as error:
        return _unread(number, Failure("syntax", f"{path.name} is no text in UTF-8: {error.reason}"), how)
    if not source.strip():
        return _unread(number, Failure("missing", f"{path.name} is empty"), how)
    return by(number, source, str(path.absolute()), **how)


def _unread(number: str, failure: Failure, how: dict[str, Any]) -> Result:
    """Return the result of a file that is missing or unreadable, with the parts that the exercise would have."""
    how = {name: value for name, value in how.items() if name == "hidden"}
    blank = check(number, catalogue.skeleton(number), "", **how)
    return Result(number, blank.name, blank.title, blank.parts, failure)


def remember(folder: Path, result: Result) -> None:
    """Save whether an exercise is solved, with a digest of the solution's text."""
    memory = _memory(folder)
    memory["solved"].pop(result.name, None)
    if result.passed:
        memory["solved"][result.name] = _digest(file_of(folder, result.number))
    _write(folder, memory)


def next_hint(folder: Path, number: str) -> tuple[int, int, str]:
    """Return the next hint's number, the number of hints, and the hint; the last hint again after all were read."""
    memory, exercise = _memory(folder), catalogue.exercise(number)
    hints = exercise.hints
    count = min(memory["hints"].get(exercise.name, 0) + 1, len(hints))
    memory["hints"][exercise.name] = count
    _write(folder, memory)
    return count, len(hints), hints[count - 1]


@dataclass(frozen=True)
class Progress:
    """An exercise's state ("solved", "changed" since, "begun", "not begun", "missing"), hints read, and all hints."""

    number: str
    title: str
    state: str
    hints: int
    all_hints: int


def progress(folder: Path) -> list[Progress]:
    """Return the state of each exercise, without running any."""
    memory, found = _memory(folder), []
    for number in catalogue.FILES:
        exercise, path = catalogue.exercise(number), file_of(folder, number)
        if not path.is_file():
            state = "missing"
        elif not os.access(path, os.R_OK):
            state = "begun"  # its check says why it cannot be read
        elif exercise.name in memory["solved"]:
            state = "solved" if memory["solved"][exercise.name] == _digest(path) else "changed"
        else:
            state = (
                "not begun"
                if path.read_text(encoding="utf-8", errors="replace") == catalogue.skeleton(number)
                else "begun"
            )
        found.append(
            Progress(number, exercise.title, state, memory["hints"].get(exercise.name, 0), len(exercise.hints))
        )
    return found


def hide_solutions(folder: Path) -> None:
    """Note in a folder that its owner is shown no solutions."""
    _write(folder, _memory(folder) | {"solutions": False})


def shows_solutions(folder: Path) -> bool:
    """Return True if a student who has solved an exercise in `folder` is shown other solutions."""
    return _memory(folder)["solutions"]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _memory(folder: Path) -> dict[str, Any]:
    """Return the saved state, or an empty state if the file is missing or damaged."""
    try:
        memory = json.loads((folder / MEMORY).read_text(encoding="utf-8"))
        parts = {part: {_name(key): value for key, value in memory[part].items()} for part in ("solved", "hints")}
        if not all(type(count) is int and count >= 0 for count in parts["hints"].values()):
            raise ValueError("a number of hints is none")
        return parts | {"solutions": memory.get("solutions") is not False}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {"solved": {}, "hints": {}, "solutions": True}


def _name(key: str) -> str:
    """Return the name of an exercise; earlier versions saved its number of that time."""
    return catalogue.FILES[f"{int(key) + MOVED:02}"].stem[3:] if key.isdecimal() else key


def _write(folder: Path, memory: dict[str, Any]) -> None:
    """Save the state; do nothing if the folder is read-only."""
    with suppress(OSError):
        (folder / MEMORY).write_text(json.dumps(memory, indent=2) + "\n", encoding="utf-8")
