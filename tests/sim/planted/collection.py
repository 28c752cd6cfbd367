"""What a planted bug is: a kernel with one mistake, its mended twin, how to launch both, and where the mistake stands.

The source says which lines are guilty, in a comment behind them: `# BUG race: write`, a kind of `sanitize`'s findings
and what happens there. Line numbers are read from these comments, so they stay right when a file changes.
"""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

MARK = re.compile(r"# BUG ([a-z-]+): (.+)")
SIZE = 64  # threads a block in most of the kernels: two warps


@dataclass(frozen=True)
class Planted:
    """One planted bug.

    kind: of the findings that it must give, at the marked lines and nowhere else. kernel, fixed: under `cuda.jit`, with
    the mistake and without. arguments: makes fresh NumPy arrays and numbers for one launch of either. note: what
    happens on a GPU. uninitialized: the positions of arguments whose contents count as never written. benign: the race
    is one of equal values. hangs: a GPU does not come back from the kernel. dynamic_shared: bytes of dynamic shared
    memory. cluster: blocks of a thread-block cluster.
    """

    kind: str
    kernel: Any
    fixed: Any
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


def floats(*shape: int) -> np.ndarray:
    """Small whole numbers as float32, all different along the array: their sums are exact in any order."""
    return np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape)


def zeros(*shape: int) -> np.ndarray:
    """A result to be written."""
    return np.zeros(shape, np.float32)


def counters(size: int = 1) -> np.ndarray:
    """Locks, flags and counters at zero."""
    return np.zeros(size, np.int32)
