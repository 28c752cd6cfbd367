"""Run Sasha Rush's GPU puzzles with a reader's kernels, in any simulator, and count: a command, not a test.

    normlab run tests/foreign/puzzles.py PUZZLES SOLUTION ...
    NUMBA_ENABLE_CUDASIM=1 python tests/foreign/puzzles.py PUZZLES SOLUTION ...

PUZZLES: the folder of github.com/srush/GPU-Puzzles, whose `GPU_puzzlers.py` has inputs and results. SOLUTION: a Python
file with some of its kernels (`map_test`, `zip_test`, …). Nothing of either is in this repository. Both run as they
are, except that nothing is drawn. A kernel passes if the puzzle's own `check`, which imports IPython, says so.
"""

import contextlib
import importlib
import io
import linecache
import sys
import types
from pathlib import Path
from typing import Any
from unittest import mock


def without_pictures() -> None:
    """Let `lib.py` import its libraries of pictures; what it makes with them on import is never drawn."""
    for name, members in {
        "chalk": {"image": mock.MagicMock(), "Tuple": tuple},
        "colour": {"Color": mock.MagicMock()},
    }.items():
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__dict__.update(members)


def executed(path: Path) -> dict[str, Any]:
    """Return the globals of a program, run without a notebook's lines for a shell."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    lines = ["\n" if line.startswith(("!", "%")) else line for line in lines]
    linecache.cache[str(path)] = len("".join(lines)), None, lines, str(path)  # where a kernel's source is looked up
    namespace: dict[str, Any] = {"__name__": path.stem}
    exec(compile("".join(lines), str(path), "exec"), namespace)
    return namespace


def main(folder: Path, *solutions: Path) -> None:
    """Run all puzzles, and print which of them pass, and the counts."""
    without_pictures()
    sys.path.insert(0, str(folder))
    problem = importlib.import_module("lib").CudaProblem
    own_check, problem.show = problem.check, lambda self, sparse=False: None
    problem.check = lambda self: None
    kernels: dict[str, Any] = {}
    for solution in solutions:
        kernels |= {name: made for name, made in executed(solution).items() if name.endswith("_test")}
    outcomes = []

    def check(self: Any) -> None:
        self.fn = kernels[self.fn.__name__]
        with contextlib.redirect_stdout(io.StringIO()) as told:
            try:
                own_check(self)
            except Exception as error:
                print(error)
        outcomes.append(told.getvalue().startswith("Passed"))
        print("passed" if outcomes[-1] else f"FAILED {told.getvalue().splitlines()[0]}", self.name)

    problem.check = check
    executed(folder / "GPU_puzzlers.py")
    print(f"{sum(outcomes)} of {len(outcomes)} puzzles pass")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
