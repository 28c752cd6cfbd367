"""Keep compiled kernels on disk, so that the next process runs neither Numba nor NVVM.

The files lie in $NORMLAB_CACHE_DIR, or in the platform's cache folder, and may be deleted at any time. A file's name
is a hash of everything that its contents depend on, so a file is never out of date. Only this package's kernels are
kept, because the engine cannot know which functions another package's kernel calls.
"""

import hashlib
import os
import platform
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from normlab.engine.compile import offline
from normlab.engine.compile.compiler import types
from normlab.engine.compile.lengths import lengths_of

PACKAGE = Path(__file__).parents[2]
SOURCES = ("engine", "stages", "kernels")  # folders of the package with functions that run on a GPU
COMPILERS = ("numba", "numba-cuda", "cuda-bindings", "nvidia-nvvm", "nvidia-nvjitlink", "llvmlite")
_warned: set[Path] = set()
OPTIONS = ("launch_bounds", "max_registers", "fastmath", "lineinfo", "opt")


def cubin(kernel: Any, kinds: tuple, cc: tuple[int, int]) -> tuple[str, bytes]:
    """Return a kernel's entry name and its machine code: from the disk, or compiled now and written to the disk.

    Args:
        kernel: a function under `cuda.jit`.
        kinds: the kinds of the kernel's arguments, from `signatures.kind_of`.
        cc: compute capability.
    """
    path = _path(kernel, kinds, cc)
    kept = None if path is None else _read(path)
    if kept is not None:
        return kept
    compiled = offline.compile_cubin(kernel, kinds, cc)
    if path is not None:
        _write(path, compiled.entry, compiled.image)
    return compiled.entry, compiled.image


def directory() -> Path | None:
    """Return the folder of the compiled kernels, or None if the user has no home directory."""
    chosen = os.environ.get("NORMLAB_CACHE_DIR")
    if chosen:
        return Path(chosen)
    try:
        home = Path.home()
    except RuntimeError:
        return None
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = home / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or home / ".cache"
    return Path(base) / "normlab"


def _path(kernel: Any, kinds: tuple, cc: tuple[int, int]) -> Path | None:
    """Return the path of a kernel's file, or None if the kernel cannot be kept."""
    folder = directory()
    try:
        facts = [*_facts(kernel), repr(kinds), repr(lengths_of(kernel, kinds)), repr(cc)]
        facts.append(repr([kernel.targetoptions.get(name) for name in OPTIONS]))
    except _UnknownError:
        return None
    if folder is None:
        return None
    key = hashlib.sha256("\0".join([*facts, _surroundings()]).encode()).hexdigest()
    return folder / f"{kernel.py_func.__name__}-sm_{cc[0]}{cc[1]}-{key}.cubin"


class _UnknownError(Exception):
    """Raised when a kernel's closure holds a value that no text describes completely."""


def _facts(value: Any) -> Iterator[str]:
    """Yield texts that together identify a kernel: its qualified name, and the contents of its closure."""
    # A dispatcher has `py_func`, an intrinsic `_defn`.
    function = getattr(value, "py_func", None) or getattr(value, "_defn", value)
    if isinstance(value, tuple):
        yield f"{len(value)} entries"
        for entry in value:
            yield from _facts(entry)
    elif value is None or isinstance(value, (bool, int, float, str, np.generic, np.dtype, types.Type)):
        yield f"{type(value).__name__} {value!r}"
    elif getattr(function, "__module__", "").startswith("normlab.") and hasattr(function, "__code__"):
        # The line number is needed because a builder may hold two functions of the same name and return either.
        yield f"{function.__module__}.{function.__qualname__} line {function.__code__.co_firstlineno}"
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            yield name
            yield from _facts(cell.cell_contents)
    else:
        raise _UnknownError


@cache
def _surroundings() -> str:
    """Return a hash of the sources of all functions that a kernel can call, with the compilers' versions."""
    text = hashlib.sha256()
    for folder in SOURCES:
        for file in sorted((PACKAGE / folder).rglob("*.py")):
            text.update(file.relative_to(PACKAGE).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    versions = [platform.python_version(), os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    for name in COMPILERS:
        try:
            versions.append(metadata.version(name))
        except metadata.PackageNotFoundError:
            versions.append(None)
    return f"{text.hexdigest()} {versions}"


def _read(path: Path) -> tuple[str, bytes] | None:
    """Return the entry name and image that `_write` wrote, or None if the file is missing or damaged."""
    try:
        digest, _, rest = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    if digest.decode("ascii", "replace") != hashlib.sha256(rest).hexdigest():
        return None
    entry, _, image = rest.partition(b"\n")
    return entry.decode(), image


def _write(path: Path, entry: str, image: bytes) -> None:
    """Write a file atomically: a process that reads at the same time finds the old file, the new file or no file."""
    rest = entry.encode() + b"\n" + image
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.stem}{uuid4().hex}.part")  # no other user may read `tempfile`'s
        try:
            part.write_bytes(hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest)
            os.replace(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    except OSError as error:
        if path.parent not in _warned:
            _warned.add(path.parent)
            text = f"compiled kernels cannot be kept in {path.parent}, so each process compiles anew: {error.strerror}"
            warnings.warn(text, stacklevel=2)
