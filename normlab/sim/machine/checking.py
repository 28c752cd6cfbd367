"""Ask the compiler whether it takes a kernel, before the kernel runs: `check=True`.

The simulator imports neither a compiler nor the rest of normlab. So this file loads the engine's check by its name when
a launch asks for the check, and runs the kernel unchecked where Numba is not installed.
"""

import warnings
from importlib import import_module
from types import FunctionType
from typing import Any

COMPILER = "normlab.engine.compile.check"


def check(kernel: Any, function: FunctionType, arguments: tuple, adopted: list) -> None:
    """Raise `CompilerError` if the compiler refuses the kernel for these arguments; warn if there is no compiler.

    `kernel`: what the caller gave, for its options; `adopted`: the arguments as the kernel sees them.
    """
    try:
        compiler = import_module(COMPILER)
    except ImportError as error:
        warnings.warn(f"the kernel runs without the compiler's check, which needs numba-cuda: {error}", stacklevel=3)
        return
    refused = compiler.check(kernel, function, arguments, adopted)
    if refused is not None:
        raise refused
