"""Tell cooperative kernels, whose blocks wait for each other, and how many blocks may: those that run at once."""

from types import CellType, FunctionType
from typing import Any

from normlab.sim.language.rewrite import names_of, python_function
from normlab.sim.machine.threads import WARP_SIZE

# Of an H200, as its driver reports them.
MULTIPROCESSORS = 132
THREADS, BLOCKS, SHARED = 2048, 32, 228 * 1024  # per multiprocessor
RESERVED = 1024  # bytes of shared memory that the system takes per block


def blocks_at_once(threads: int, dynamic_shared_bytes: int) -> int:
    """Return how many blocks of `threads` an H200 holds; registers and arrays of fixed shape are not counted."""
    # A multiprocessor gives a block whole warps: 33 threads take the room of 64.
    whole_warps = -(-threads // WARP_SIZE) * WARP_SIZE
    return min(BLOCKS, THREADS // whole_warps, SHARED // (dynamic_shared_bytes + RESERVED)) * MULTIPROCESSORS


def is_cooperative(function: FunctionType) -> bool:
    """Return whether a kernel, or a device function that it reaches, uses the group of the grid's threads."""
    return any("this_grid" in names_of(each.__code__) for each in _reached(function, []))


def _reached(function: Any, found: list[FunctionType]) -> list[FunctionType]:
    """Return `function` and the device functions that it reaches, added to those in `found`."""
    if isinstance(function, FunctionType) and function not in found:
        found.append(function)
        named = [function.__globals__.get(name) for name in names_of(function.__code__)]
        # An empty cell is a variable without a value yet. `names_of` has attributes' names, too: no globals, so None.
        held = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
        for value in (*named, *held):
            _reached(python_function(value), found)
    return found
