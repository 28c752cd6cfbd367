"""Lay out what a student handed in: a zip or a folder, with folders in it, and with names that a browser changed.

No file is unpacked to the path in its zip. A file with an exercise's name is read, and written under the exercise's own
name into a clean folder. Remarks say what is left out, and why.
"""

import io
import os
import re
import stat
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from normlab.course import catalogue
from normlab.course.folder import LARGEST, MEMORY

# What a browser or a file manager appends for a further copy: " (1)", "-2", " - Copy", " copy 2".
COPY = re.compile(r"[ _-]*(?:\((\d+)\)|copy(?: \(?(\d+)\)?)?|[ _-](\d+))$")
LARGEST_ZIP = 50_000_000  # bytes
DEEPEST = 3  # zips in zips
MOST = 10_000  # files of a zip that are looked at
DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError, ValueError)


class Found(NamedTuple):
    """A file that was handed in for an exercise: where, its first LARGEST bytes and one more, the copy's number."""

    where: str
    content: bytes
    copy: int  # 0 for the exercise's own name

    @property
    def rank(self) -> tuple[int, int, str]:
        """Return a sort key: the file to grade comes first. It has the exercise's own name, or is the last copy."""
        return -self.copy if self.copy else -MOST, self.where.count("/"), self.where


def lay_out(submission: Path, clean: Path) -> tuple[str, ...]:
    """Write the exercises' files of a submission into the folder `clean`, and return remarks for its student."""
    clean.mkdir(parents=True, exist_ok=True)
    remarks: list[str] = []
    found: defaultdict[str, list[Found]] = defaultdict(list)
    for number, one in _all(submission, remarks):
        found[number].append(one)
    for number in sorted(found):
        first, *others = sorted(found[number], key=lambda one: one.rank)
        name = catalogue.FILES[number].name
        (clean / name).write_bytes(first.content)
        if unlike := [one.where for one in others if one.content != first.content]:
            remarks.append(f"{name}: {first.where} is graded, and not {', '.join(unlike)}")
        elif PurePosixPath(first.where).name != name:
            remarks.append(f"{name}: {first.where} is graded")
    return tuple(sorted(remarks))


def exercise_of(name: str) -> tuple[str, int] | None:
    """Return the exercise's number, and the copy's (0 for the first), of a file's name; None for another file.

    "01_map (1).py", "01_MAP-2.PY", "1 map copy.py", "map.py" and "lovelace_12_345_01_map.py" are exercise 01.
    """
    word, ending = os.path.splitext(name.lower())
    if ending != ".py":
        return None
    copy = 0
    while (number := _number(word)) is None:
        ends = [match for start in range(len(word)) if (match := COPY.match(word, start))]
        if not ends:
            return None
        # an exercise's name may end with "copy": the longest end without which a name is left, or else the longest
        match = next((one for one in ends if _number(word[: one.start()])), ends[0])
        word, copy = word[: match.start()], copy + int(next(filter(None, match.groups()), 1))
    return number, copy


def _number(word: str) -> str | None:
    """Return the number of the exercise whose name `word` is, or ends with after other numbers; else None."""
    word = re.sub(r"[ -]+", "_", word)
    for number, path in catalogue.FILES.items():
        if re.search(rf"(?:^|_)0?\d+_{path.stem[3:]}$|^{path.stem[3:]}$", word):
            return number
    return None


def is_handed_in(submission: Path) -> bool:
    """Return whether a zip or a folder has any exercise."""
    return any(True for _ in _all(submission, []))


def _all(submission: Path, remarks: list[str]) -> Iterator[tuple[str, Found]]:
    """Yield the files of a submission with their exercises' numbers; append remarks on what is left out."""
    if submission.is_symlink():
        remarks.append(f"{submission.name} is a link, and left out")
        return
    if submission.is_file():
        yield from _zipped(submission.read_bytes()[: LARGEST_ZIP + 1], submission.name, remarks, 1)
        return
    for folder, folders, files in os.walk(submission):
        folders[:] = sorted(name for name in folders if not _ours(name))
        for name in sorted(files):
            path = Path(folder, name)
            where = path.relative_to(submission).as_posix()
            if _ours(name):
                continue
            if path.is_symlink() or not path.is_file():
                remarks.append(f"{where} is no plain file, and left out")
                continue
            try:
                with path.open("rb") as file:
                    content = file.read((LARGEST_ZIP if _is_zip(name) else LARGEST) + 1)
            except OSError as error:
                remarks.append(f"{where} cannot be read: {error.strerror}")
                continue
            yield from _one(where, content, remarks, 1)


def _one(where: str, content: bytes, remarks: list[str], depth: int) -> Iterator[tuple[str, Found]]:
    """Yield a file, or the files in it if it is a zip."""
    name = PurePosixPath(where).name
    if _is_zip(name):
        yield from _zipped(content, where, remarks, depth)
    elif exercise := exercise_of(name):
        yield exercise[0], Found(where, content, exercise[1])
    else:
        remarks.append(f"{where} is no exercise's file, and left out")


def _zipped(content: bytes, where: str, remarks: list[str], depth: int) -> Iterator[tuple[str, Found]]:
    """Yield the exercises' files of a zip."""
    if depth > DEEPEST or len(content) > LARGEST_ZIP:
        remarks.append(f"{where} is left out: {'zips in zips in zips' if depth > DEEPEST else 'it is too large'}")
        return
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
    except DAMAGED:
        remarks.append(f"{where} cannot be unpacked: it is damaged, or no zip")
        return
    if len(archive.infolist()) > MOST:
        remarks.append(f"{where} has more than {MOST:,} files: the others are left out")
    for entry in archive.infolist()[:MOST]:
        name = entry.filename.replace("\\", "/")
        parts, inside = PurePosixPath(name).parts, f"{where}/{name}"
        if entry.is_dir() or any(map(_ours, parts)):
            continue
        if name.startswith("/") or ".." in parts:
            remarks.append(f"{inside} is left out: its path leads out of the zip")
        elif stat.S_ISLNK(entry.external_attr >> 16):
            remarks.append(f"{inside} is no plain file, and left out")
        elif entry.flag_bits & 1:
            remarks.append(f"{inside} is encrypted, and cannot be read")
        elif not _is_zip(name) and not exercise_of(parts[-1]):
            remarks.append(f"{inside} is no exercise's file, and left out")
        else:
            try:
                with archive.open(entry) as file:
                    content = file.read((LARGEST_ZIP if _is_zip(name) else LARGEST) + 1)
            except DAMAGED:
                remarks.append(f"{inside} cannot be unpacked: the zip is damaged")
                continue
            yield from _one(inside, content, remarks, depth + 1)


def _is_zip(name: str) -> bool:
    return name.lower().endswith(".zip")


def _ours(name: str) -> bool:
    """Return whether a name is one that systems and this course make, and no student: no remark is made of it."""
    return name != ".." and (name.startswith(".") or name in ("__MACOSX", "__pycache__", "Thumbs.db", MEMORY))
