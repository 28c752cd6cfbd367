"""Follow where a thread is in its run: which calls it is inside of, and in which turn of each loop.

Lanes of a warp execute an instruction together when they reach it by the same calls in the same turns of the same
loops; on a GPU the compiler's reconvergence points see to that. A thread in the simulator runs alone, so it keeps a
path: a number that two threads of a warp share exactly when their calls and turns agree. Calls of functions without
loops are not part of the path; they are read off the stack where they matter. `PathMarks` puts reports of calls and
turns into a function's syntax tree, and `Paths` receives them.
"""

import ast
import sys
from itertools import count
from typing import Any

from normlab.sim.language.source import position_of
from normlab.sim.protocols import Block, Cuda

KERNEL_MARK = "_simulated_int64"  # only kernels and device functions have this global (rewrite.py)
PATHS = "_simulated_paths"  # the kernel's global that names the launch's Paths


# Loops are numbered by their depth and not by name, because of two loops at one depth only one runs at a time.
class Call:
    """A function that a thread is in: the path from outside, those of its loops by depth, and their turns so far."""

    __slots__ = ("outside", "paths", "turns")

    def __init__(self, outside: int, path: int, depth: int):
        """Begin on `path`; loops are at most `depth` deep."""
        # paths[d] is the path outside of the loop at depth d, and paths[d + 1] the path in its present turn.
        self.outside, self.paths, self.turns = outside, [path] * (depth + 1), [0] * depth


class Trail:
    """The path of one thread, and the functions with loops that it is in; `slot`: 32 times its warp's number + lane."""

    __slots__ = ("calls", "path", "slot")

    def __init__(self, path: int, slot: int):
        """Begin on `path`."""
        self.path, self.slot = path, slot
        self.calls: list[Call] = []


class Paths:
    """Follows the threads of a launch. Each has its `Trail` in `seen`.

    A path is the hash of the path before it and the step from there: 64 bits, so that two are hardly ever the same.
    """

    def __init__(self, cuda: Cuda):
        """Follow the threads of the launch of `cuda`."""
        self._cuda = cuda
        self.warps: list[tuple[tuple[int, int, int], int]] = []  # by number: index of the block, position in it

    def begin(self, block: Block) -> None:
        """Put the threads of a block that has not run yet on paths of their warp."""
        for position, warp in enumerate(block.warps):
            number = len(self.warps)
            for thread in warp.threads:
                # The warp's number is in the path from the start, so that no lanes of two warps ever share one.
                thread.seen = Trail(hash((number, 0)), 32 * number + thread.lane)
            self.warps.append((tuple(block.index), position))

    def enter(self, depth: int) -> None:
        """Follow the running thread into the function that calls this, whose loops are at most `depth` deep."""
        trail = self._cuda.current.seen
        # Frame 0 is this method, frame 1 the kernel's function, and frame 2 the one that has called it.
        path = hash((trail.path, *calls_of(sys._getframe(2))))
        trail.calls.append(Call(trail.path, path, depth))
        trail.path = path

    def leave(self) -> None:
        """Follow the running thread out of its function."""
        trail = self._cuda.current.seen
        # After the call all lanes that called are together again, whatever way they took inside.
        trail.path = trail.calls.pop().outside

    def loop(self, depth: int) -> None:
        """Put the running thread on the path outside of a loop that begins or has ended, inside `depth` others."""
        trail = self._cuda.current.seen
        call = trail.calls[-1]
        # A loop inside another begins at turn 0 again in every turn of the outer one, whose path differs by then.
        call.turns[depth] = 0
        trail.path = call.paths[depth]

    def turn(self, depth: int, loop: int) -> None:
        """Put the running thread on the path of the next turn of a loop, the function's `loop`-th."""
        trail = self._cuda.current.seen
        call = trail.calls[-1]
        call.turns[depth] = turn = call.turns[depth] + 1
        # The loop's number tells apart two loops that stand one after the other at the same depth.
        trail.path = call.paths[depth + 1] = hash((call.paths[depth], loop, turn))


_places: dict[tuple[int, int], int] = {}  # (code, instruction) → a number for its position in the source
_positions: dict[tuple, int] = {}
_numbers = count()  # not len(_positions), which two threads of the host could read at once and both use


def calls_of(frame: Any) -> list[int]:
    """Return where the kernel's functions stand, from that of `frame` outwards: a number for each source position.

    Not instructions: the interpreter reports several for one call, before and after it has specialised it, and
    compiles a loop's condition twice.
    """
    found = []
    # The frames of a kernel and its device functions lie together; the first frame of the simulator ends them.
    while KERNEL_MARK in frame.f_globals:
        instruction = id(frame.f_code), frame.f_lasti
        if instruction not in _places:
            position = position_of(frame.f_code, frame.f_lasti)
            _places[instruction] = _positions.setdefault((id(frame.f_code), position), next(_numbers))
        found.append(_places[instruction])
        frame = frame.f_back
    return found


class PathMarks(ast.NodeTransformer):
    """Puts calls of `Paths` at the beginning and the end of functions with loops, and at every turn of each."""

    def __init__(self) -> None:
        """Start outside of any function."""
        self._depth = self._deepest = self._loops = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Wrap the body of a function with loops: enter(); try: the body; finally: leave()."""
        outer = self._depth, self._deepest, self._loops
        self._depth = self._deepest = self._loops = 0
        self.generic_visit(node)
        # A function without loops needs no marks: its calls are read off the stack where an access is logged.
        if self._loops:
            # `finally`, because a return inside a loop leaves the function without an end of the loop.
            node.body = [_report("enter", self._deepest), ast.Try(node.body, [], [], [_report("leave")])]
        self._depth, self._deepest, self._loops = outer
        return node

    def _visit_loop(self, node: Any) -> list[ast.stmt]:
        depth, loop = self._depth, self._loops
        self._depth, self._loops = depth + 1, loop + 1
        self._deepest = max(self._deepest, self._depth)
        otherwise, node.orelse = ast.Module(node.orelse, []), []
        self.generic_visit(node)
        self._depth = depth
        node.orelse = self.generic_visit(otherwise).body  # type: ignore[attr-defined]
        node.body.insert(0, _report("turn", depth, loop))
        if node.orelse:  # where all lanes meet that have not left by a break
            node.orelse.insert(0, _report("loop", depth))
        # The second report is for the code after the loop, which a lane reaches on the path that it had before.
        return [_report("loop", depth), node, _report("loop", depth)]

    visit_For = visit_While = _visit_loop  # noqa: N815


def _report(what: str, *numbers: int) -> ast.stmt:
    function = ast.Attribute(ast.Name(PATHS, ast.Load()), what, ast.Load())
    return ast.Expr(ast.Call(function, [ast.Constant(number) for number in numbers], []))
