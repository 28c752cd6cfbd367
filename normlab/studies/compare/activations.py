"""Read the activations that `normlab compare` runs on: three bundled layers, or a user's .npy or .npz file.

Pickles are refused, because loading one can run code. Every mistake in a file becomes an `InputError` of one line.
`normlab.studies.compare.traffic` turns a `Source` into a layer in one dtype.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

ARRAYS = ("input", "weight", "bias", "grad_output", "eps")


class InputError(Exception):
    """Raised for a mistake in the user's file; the message is one line, for the user."""


@dataclass(frozen=True)
class Source:
    """One layer as it was read: its name, its arrays, and notes for the report.

    `arrays` has "input", and may have the other names of ARRAYS. `check` says whether the arrays fit each other.
    """

    name: str
    arrays: dict[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, int]:
        """Return (n1, n2): the number of rows, and the elements per row, which are the input's last dimension."""
        *leading, n2 = np.shape(self.arrays["input"])
        return prod(leading), n2


def bundled() -> list[Source]:
    """Return three layers of all-MiniLM-L6-v2, from `normlab/data` (its README says more)."""
    with (files("normlab") / "data" / "minilm_layernorm.npz").open("rb") as file:
        data = dict(np.load(file, allow_pickle=False))
    names = [key.removesuffix("_input") for key in data if key.endswith("_input") and not key.endswith("_grad_input")]
    return [
        Source(name, {"eps": data["eps"]} | {key: data[f"{name}_{key}"] for key in ARRAYS if key != "eps"})
        for name in names
    ]


def read(path: Path) -> Source:
    """Return the layer in a .npy file, which holds the input alone, or in a .npz file, which may hold all of ARRAYS.

    The file's first bytes decide which of the two it is, whatever its name. Arrays of other names are not read.

    Raises:
        InputError: there is no such file, NumPy cannot read it without pickle, it has no input, or its shapes do not
            fit.
    """
    shown = str(path).encode("utf-8", "replace").decode()
    with _reading(shown):
        if path.is_dir():
            raise InputError(f"{shown} is a directory; give a .npy or .npz file")
        if not path.exists():
            raise InputError(f"{shown}: no such file")
        if not path.is_file():
            raise InputError(f"{shown} is not a regular file, which NumPy needs")
        with path.open("rb") as file:
            start = file.read(8)
        if start.startswith(b"\x93NUMPY"):
            arrays: dict[str, Any] = {"input": _load_npy(path)}
        elif start.startswith(b"PK"):
            with np.load(path, allow_pickle=False) as archive:
                arrays = {key: archive[key] if key in ARRAYS else None for key in archive.files}
        else:
            raise InputError(f"{shown} {_what_else(start)}; give a .npy or .npz file")
    if "input" not in arrays:
        raise InputError(f"{shown} has no array named 'input'; it has {', '.join(sorted(arrays)) or 'none at all'}")
    others = ", ".join(sorted(key for key in arrays if key not in ARRAYS))
    notes = (f"not read from the file: {others}",) if others else ()
    name = path.stem.encode("utf-8", "replace").decode()
    source = Source(name, {key: array for key, array in arrays.items() if key in ARRAYS}, notes)
    check(source)
    return source


@contextmanager
def _reading(shown: str) -> Iterator[None]:
    """Turn every error that the system or NumPy raises on a file into an InputError about the file `shown`."""
    try:
        yield
    except InputError:
        raise
    # Any: NumPy lets errors of zipfile, zlib, tokenize and ast through, and an encrypted archive is a RuntimeError.
    except Exception as error:
        if str(error).startswith("Object arrays cannot be loaded"):
            raise InputError(f"{shown} holds Python objects (a pickle), not numbers; they are not loaded") from None
        reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{shown} cannot be read: {reason}") from None


def _load_npy(path: Path) -> Any:
    try:
        # Mapped, because `traffic` takes only some rows: the others are then never read from disk.
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError:  # the file cannot be mapped, for example because the array has no elements
        return np.load(path, allow_pickle=False)


def _what_else(start: bytes) -> str:
    """Return what a file is that is neither .npy nor .npz, by its first bytes, as the middle of a message."""
    if not start:
        return "is an empty file"
    return "is a pickle, which may run code and is not loaded" if start[0] == 0x80 else "is not a NumPy file"


def check(source: Source) -> None:
    """Raise InputError unless a source's arrays hold real numbers, their shapes fit, and eps is valid."""
    arrays = source.arrays
    for key in ARRAYS:
        if key in arrays:
            _check_numbers(key, arrays[key])
    shape = np.shape(arrays["input"])
    if not shape:
        raise InputError("input is a single number; it needs rows: (n1, n2), the last dimension is normalised")
    if not prod(shape):
        raise InputError(f"input of shape {shape} is empty")
    expected = {"weight": shape[-1:], "bias": shape[-1:], "grad_output": shape}
    for key, needed in expected.items():
        if key in arrays and np.shape(arrays[key]) != needed:
            raise InputError(f"{key} has shape {np.shape(arrays[key])}, but input of shape {shape} needs {needed}")
    if "eps" in arrays and (np.size(arrays["eps"]) != 1 or not 0 <= np.reshape(arrays["eps"], -1)[0] < np.inf):
        raise InputError("eps must be one finite number, not below 0")


def _check_numbers(key: str, array: Any) -> None:
    """Raise InputError unless the array is a NumPy array of floats or integers."""
    if not isinstance(array, np.ndarray):
        raise InputError(f"{key} is not a NumPy array")
    if array.dtype.kind == "V" and array.dtype.itemsize == 2 and array.dtype.names is None:
        raise InputError(f"{key} has raw 2-byte values: save bfloat16 as float32, and compare with --dtype bfloat16")
    if array.dtype.kind not in "fiu":
        raise InputError(f"{key} holds {array.dtype} values; real numbers are needed")
