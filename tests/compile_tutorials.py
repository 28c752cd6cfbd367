"""Do the tutorials run on a GPU, too? Asked where there is none: every kernel that one launches must compile to PTX.

A program of its own, for .ci/run: `python tests/compile_tutorials.py`. Each tutorial's .py is executed as a script, in
the simulator; on the way every new launch is compiled as well. A kernel without float64 arguments must not compute in
float64, which the simulator would not show. What a tutorial only traces or sanitizes runs in the simulator everywhere.
"""

import runpy
import sys
from typing import Any

import matplotlib as mpl
import numpy as np

from normlab import engine
from normlab.engine import compile_ptx
from normlab.learn import tutorials

simulated = engine.launch
seen: set = set()
wrong: list[str] = []


def type_of(argument: Any) -> Any:
    """An argument's type in `compile_ptx`'s words."""
    if argument is None:
        return None
    if isinstance(argument, np.ndarray):
        return argument.dtype, argument.ndim
    return np.asarray(argument).dtype


def launch(kernel: Any, grid: Any, block: Any, *arguments: Any, **how: Any) -> None:
    """Compile a kernel that has not been seen with these types, and launch it as always."""
    types = tuple(type_of(argument) for argument in arguments)
    if (kernel, types) not in seen:
        seen.add((kernel, types))
        try:
            ptx = compile_ptx(kernel, types)
        except Exception as error:
            wrong.append(f"{kernel.__name__} does not compile: {error}")
        else:
            if ".f64" in ptx and not any("float64" in str(kind) for kind in types):
                wrong.append(f"{kernel.__name__} computes in float64")
    simulated(kernel, grid, block, *arguments, **how)


def main() -> int:
    """Run the tutorials whose numbers are given, or all; 1 if something is wrong."""
    mpl.use("Agg")
    engine.launch = launch
    for tutorial in tutorials.chosen([int(number) for number in sys.argv[1:]]):
        seen.clear()
        runpy.run_path(str(tutorial.source))
        print(
            f"{tutorial.source.name}: {len(seen)} launches compiled{''.join(f'; {one}' for one in wrong)}",
            file=sys.stderr,
        )
        if wrong:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
