"""Make kernels from texts, whose lines the simulator finds in `linecache`."""

import linecache
from typing import Any

from numba import cuda, int32


def kernel_of(name: str, text: str) -> Any:
    """Return the function `kernel` of a text, under `cuda.jit`; reports call its file `name`."""
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    made: dict[str, Any] = {"cuda": cuda, "int32": int32, "FULL": 0xFFFFFFFF}
    exec(compile(text, name, "exec"), made)
    return cuda.jit(made["kernel"])
