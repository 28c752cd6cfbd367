"""Count the turns of loops in a thread's local variables, so that a barrier can tell in which turn each thread comes.

The sanitizer asks for it. Only loops that may hold a barrier count: those that call a function with "sync" in its name
or a function of the program's own, which may have a barrier inside.
"""

import ast
from functools import cache
from types import CodeType, FrameType
from typing import Any

from normlab.sim.language.paths import KERNEL_MARK

TURN = "_simulated_turn_"  # then the loop's line and its number in the file
NO_BARRIER_IN = frozenset(("cuda", "math", "np", "numpy"))  # modules whose functions hold no barrier, "sync" apart
BUILTINS = frozenset(
    ("abs", "bool", "divmod", "enumerate", "float", "int", "len", "max", "min", "pow", "range", "round")
)

Turns = tuple[tuple[int, int], ...]  # of each loop: its line, and the turn, counted from 1, or 0 outside of the loop


class TurnMarks(ast.NodeTransformer):
    """Puts a counter into every loop that may hold a barrier; the counter is 0 outside of the loop."""

    def __init__(self) -> None:
        """Start before the first loop."""
        self._loops = 0

    def _visit_loop(self, node: Any) -> Any:
        self.generic_visit(node)
        if not any(isinstance(part, ast.Call) and _may_meet(part) for part in ast.walk(node)):
            return node
        self._loops += 1
        name = f"{TURN}{node.lineno}_{self._loops}"
        node.body.insert(0, ast.AugAssign(ast.Name(name, ast.Store()), ast.Add(), ast.Constant(1)))
        if node.orelse:
            # In `else` the loop is over, and a barrier there is in none of its turns.
            node.orelse.insert(0, _outside(name))
        # Before, because `+= 1` needs a value; after, because a break or the last turn leaves a number behind.
        return [_outside(name), node, _outside(name)]

    visit_For = visit_While = _visit_loop  # noqa: N815


def _may_meet(call: ast.Call) -> bool:
    """Return whether a call may be of a barrier, or of a function with a barrier inside."""
    function = call.func
    if isinstance(function, ast.Name):
        return function.id not in BUILTINS and not function.id.startswith("_simulated")
    if not isinstance(function, ast.Attribute):
        return False
    if "sync" in function.attr:
        return True
    # Of `a.b.c()` the leftmost name decides: a module of the program's own may have a barrier in any function.
    root: ast.expr = function
    while isinstance(root, ast.Attribute):
        root = root.value
    return isinstance(root, ast.Name) and root.id not in NO_BARRIER_IN


def _outside(name: str) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], ast.Constant(0))


@cache
def _counters(code: CodeType) -> tuple[tuple[int, str], ...]:
    """Return the lines and the counters of a function's loops."""
    names = [name for name in (*code.co_varnames, *code.co_cellvars) if name.startswith(TURN)]
    return tuple((int(name[len(TURN) :].split("_")[0]), name) for name in names)


def turns_of(frame: FrameType | None) -> Turns:
    """Return the turns of all loops of the kernel's functions around `frame`, the innermost function first."""
    found = []
    while frame is not None:
        counters = _counters(frame.f_code) if KERNEL_MARK in frame.f_globals else ()
        if counters:
            # Only here: up to CPython 3.12, f_locals copies all variables of the frame.
            variables = frame.f_locals
            found += [(line, variables.get(name, 0)) for line, name in counters]
        frame = frame.f_back
    return tuple(found)
