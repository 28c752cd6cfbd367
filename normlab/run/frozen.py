"""Keep a kernel's globals as they were at compilation, because Numba compiles a global's value as a constant.

If a program changes a global later, a kernel on a GPU keeps the old value until the program calls `recompile` or
launches with other types. A specialisation here therefore keeps copies of the kernel and of its device functions with
the globals of that moment. A device array among them is kept by its address, and stays writable.
"""

from types import CellType, FunctionType, SimpleNamespace
from typing import Any

import numpy as np

from normlab.run.interface import as_cuda_array, is_cuda_array
from normlab.run.memory import HostMappedArray
from normlab.sim.language.rewrite import names_of


def frozen(function: FunctionType, done: dict[int, FunctionType] | None = None) -> FunctionType:
    """Return a copy of `function`, and of the functions it calls, with the present values of globals and closures.

    `done`: id of a function → its frozen copy, for functions that call each other.
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
        if now != CellType():  # an empty cell is a variable without a value yet
            cell.cell_contents = _kept(now.cell_contents, done)
    return copy


def _kept(value: Any, done: dict[int, FunctionType]) -> Any:
    """Return a constant copy of a global's value."""
    if isinstance(value, np.ndarray) and not isinstance(value, HostMappedArray):
        return value.copy()
    if is_cuda_array(value):  # a GPU keeps the address of memory that is its own
        return as_cuda_array(value).memory
    called = getattr(value, "called", value)  # a device function with declared types has a converting wrapper here
    if isinstance(getattr(called, "py_func", None), FunctionType):
        return SimpleNamespace(py_func=frozen(called.py_func, done))
    return value
