"""What a planted bug is: a kernel with one mistake, its mended twin, how to launch both, and where the mistake stands.

The source says which lines are guilty, in a comment behind them: `# BUG race: write`, a kind of `sanitize`'s findings
and what happens there. Line numbers are read from these comments, so they stay right when a file changes. Comments also
say what the twin has in place of a line (`# FIX writes: …`), which lines it has not (`# FIX drops`), and which it
has besides, in a line of their own (`# FIX adds: …`).
"""

import inspect
import linecache
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

MARK = re.compile(r"# BUG ([a-z-]+): ([^#]+)")
FIX = re.compile(r"# FIX (adds|writes|drops)(?:: (.+))?")
SIZE = 64  # threads a block in most of the kernels: two warps


@dataclass(frozen=True)
class Planted:
    """One planted bug.

    kind: of the findings that it must give, at the marked lines and nowhere else. kernel: under `cuda.jit`, with the
    mistake. arguments: makes fresh NumPy arrays and numbers for one launch of it or its twin. note: what happens on a
    GPU. uninitialized: the positions of arguments whose contents count as never written. benign: the race is one of
    equal values. hangs: a GPU does not come back from the kernel. dynamic_shared: bytes of dynamic shared memory.
    cluster: blocks of a thread-block cluster.
    """

    kind: str
    kernel: Any
    grid: int | tuple[int, ...]
    block: int | tuple[int, ...]
    arguments: Callable[[], tuple]
    note: str
    uninitialized: tuple[int, ...] = ()
    benign: bool = False
    hangs: bool = False
    dynamic_shared: int = 0
    cluster: int = 1

    @property
    def name(self) -> str:
        """The kernel's name; its twin is called the same, and `_fixed`."""
        return self.kernel.py_func.__name__

    @cached_property
    def fixed(self) -> Any:
        """The kernel without the mistake."""
        return mended(self.kernel)

    @property
    def configuration(self) -> tuple:
        """What stands in the brackets of a launch."""
        return (self.grid, self.block, 0, self.dynamic_shared) if self.dynamic_shared else (self.grid, self.block)

    @property
    def marks(self) -> dict[int, tuple[str, str]]:
        """Line number in the file → (kind, what happens there), of the marked lines."""
        lines, first = inspect.getsourcelines(self.kernel.py_func)
        found = ((number, MARK.search(line)) for number, line in enumerate(lines, first))
        return {number: (mark[1], mark[2].strip()) for number, mark in found if mark}

    @property
    def lines(self) -> tuple[int, ...]:
        """The numbers of the marked lines."""
        return tuple(self.marks)


def mended(kernel: Any) -> Any:
    """The kernel that the comments in a kernel's source ask for, under `cuda.jit`."""
    lines = []
    for line in inspect.getsourcelines(kernel.py_func)[0]:
        change = FIX.search(line)
        if change is None:
            lines.append(re.sub(r"\s*# BUG .*", "", line))
        elif change[1] != "drops":
            lines.append(line[: len(line) - len(line.lstrip())] + change[2] + "\n")
    name, made = kernel.py_func.__name__, {}
    text = "".join(lines).replace(f"def {name}(", f"def {name}_fixed(")
    file = f"<{name}_fixed>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    exec(compile(text, file, "exec", dont_inherit=True), kernel.py_func.__globals__, made)
    return made[f"{name}_fixed"]


def floats(*shape: int) -> np.ndarray:
    """Small whole numbers as float32, all different along the array: their sums are exact in any order."""
    return np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape)


def zeros(*shape: int) -> np.ndarray:
    """A result to be written."""
    return np.zeros(shape, np.float32)


def counters(size: int = 1) -> np.ndarray:
    """Locks, flags and counters at zero."""
    return np.zeros(size, np.int32)
