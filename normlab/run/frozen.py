"""A kernel as it was when it was compiled: Numba takes a global for a constant of the code that it compiles.

A program that changes a global afterwards goes on with the old value on a GPU, until it calls `recompile` or launches
with other types. So a specialisation keeps its function with the globals of that moment, device functions too.
"""

from types import CellType, FunctionType, SimpleNamespace
from typing import Any

import numpy as np

from normlab.sim.language.rewrite import names_of


def frozen(function: FunctionType, done: dict[int, FunctionType] | None = None) -> FunctionType:
    """Return `function` with the values that its globals and closure have now, and the same for what it calls.

    `done`: id of a function → its frozen copy, for functions that name each other.
    """
    done = {} if done is None else done
    if id(function) in done:
        return done[id(function)]
    kept: dict[str, Any] = {"__name__": function.__module__, "__builtins__": function.__globals__["__builtins__"]}
    cells = tuple(CellType() for _ in function.__closure__ or ())
    copy = FunctionType(function.__code__, kept, function.__name__, function.__defaults__, cells)
    done[id(function)] = copy
    for name in names_of(function.__code__) & function.__globals__.keys():
        kept[name] = _kept(function.__globals__[name], done)
    for cell, now in zip(cells, function.__closure__ or (), strict=True):
        if now != CellType():  # else a variable without a value yet
            cell.cell_contents = _kept(now.cell_contents, done)
    return copy


def _kept(value: Any, done: dict[int, FunctionType]) -> Any:
    """Return a global's value as a constant."""
    if isinstance(value, np.ndarray):
        return value.copy()
    called = getattr(value, "called", value)  # of a device function with declared types, the one that converts
    if isinstance(getattr(called, "py_func", None), FunctionType):
        return SimpleNamespace(py_func=frozen(called.py_func, done))
    return value
