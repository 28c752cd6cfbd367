"""Ask the compiler whether it takes a kernel, before the kernel runs: `check=True`."""

import warnings
from importlib import import_module
from types import FunctionType
from typing import Any

from normlab.sim.language.errors import CompilerError
from normlab.sim.language.variables import Types

# A name, loaded when a launch asks for the check: the simulator imports neither a compiler nor the rest of normlab.
COMPILER = "normlab.engine.compile.check"


def check(kernel: Any, function: FunctionType, arguments: tuple, adopted: list) -> Types | None:
    """Return the types of a kernel's variables; raise `CompilerError` if the compiler refuses it for these arguments.

    Warn and return None if there is no compiler.

    `kernel`: what the caller gave, for its options; `adopted`: the arguments as the kernel sees them.
    """
    try:
        compiler = import_module(COMPILER)
    except ImportError as error:
        # The simulator needs no Numba: without it the kernel runs unchecked, and the caller is told.
        warnings.warn(f"the kernel runs without the compiler's check, which needs numba-cuda: {error}", stacklevel=3)
        return None
    told = compiler.check(kernel, function, arguments, adopted)
    if isinstance(told, CompilerError):
        raise told
    return told
