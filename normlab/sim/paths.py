"""Where a thread is in its run: which calls it is inside of, and in which turn of each loop.

Lanes of a warp execute an instruction together when they reach it by the same calls in the same turns of the same
loops; that is what the compiler's reconvergence points give on a GPU. A thread in the simulator runs alone, so it
keeps a path, a number that two threads of a warp share exactly when all that agrees. `PathMarks` puts the reports of
calls and turns into a function's syntax tree; `Paths` receives them.
"""

import ast
import sys
from collections import defaultdict
from typing import Any

PATHS = "_simulated_paths"  # the kernel's global that names the launch's Paths


class Trail:
    """The path of one thread: a stack of calls, each a list of paths by the depth of its loops."""

    __slots__ = ("calls", "path", "turns")

    def __init__(self) -> None:
        """Be outside of the kernel."""
        self.path = 0
        self.calls: list[list[int]] = []
        self.turns: list[list[int]] = []


class Paths:
    """Numbers the paths of every warp, and keeps those of its threads."""

    def __init__(self, cuda: Any):
        """Follow the threads of the launch of `cuda`."""
        self._cuda = cuda
        self._numbers: dict[Any, defaultdict[tuple, int]] = {}  # warp → step from a path → the path it leads to
        self._trails: dict[Any, Trail] = {}

    def of(self, thread: Any) -> int:
        """Return the path of `thread`."""
        trail = self._trails.get(thread)
        return trail.path if trail is not None else 0

    def forget(self, thread: Any) -> None:
        """Drop what is known of a thread that has returned."""
        self._trails.pop(thread, None)
        if not thread.warp.live:
            self._numbers.pop(thread.warp, None)

    def _number(self, thread: Any, step: tuple) -> int:
        numbers = self._numbers.get(thread.warp)
        if numbers is None:
            numbers = self._numbers[thread.warp] = defaultdict()
            numbers.default_factory = numbers.__len__
        return numbers[step] + 1

    def enter(self) -> None:
        """Hear that the running thread has entered the function that calls this."""
        thread = self._cuda.current
        trail = self._trails.get(thread)
        if trail is None:
            trail = self._trails[thread] = Trail()
        caller: Any = sys._getframe(2)
        trail.path = self._number(thread, (trail.path, caller.f_code, caller.f_lasti))
        trail.calls.append([trail.path])
        trail.turns.append([])

    def leave(self) -> None:
        """Hear that the running thread leaves its function."""
        trail = self._trails[self._cuda.current]
        trail.calls.pop()
        trail.turns.pop()
        trail.path = trail.calls[-1][-1] if trail.calls else 0

    def loop(self, depth: int) -> None:
        """Hear that a loop is about to begin, inside `depth` others, or has ended."""
        trail = self._trails[self._cuda.current]
        paths = trail.calls[-1]
        del paths[depth + 1 :]
        trail.path = paths[depth]
        turns = trail.turns[-1]
        del turns[depth:]
        turns.append(0)

    def turn(self, depth: int, loop: int) -> None:
        """Hear that a turn of the loop begins, the function's `loop`-th."""
        thread = self._cuda.current
        trail = self._trails[thread]
        paths, turns = trail.calls[-1], trail.turns[-1]
        del paths[depth + 1 :], turns[depth + 1 :]
        turns[depth] += 1
        trail.path = self._number(thread, (paths[depth], loop, turns[depth]))
        paths.append(trail.path)


class PathMarks(ast.NodeTransformer):
    """Puts calls of `Paths` at the beginning and the end of functions, and at every turn of every loop."""

    def __init__(self) -> None:
        """Start outside of any function."""
        self._depth = 0
        self._loops = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """try: enter(); the body; finally: leave()."""
        outer = self._depth, self._loops
        self._depth = self._loops = 0
        self.generic_visit(node)
        self._depth, self._loops = outer
        node.body = [_report("enter"), ast.Try(node.body, [], [], [_report("leave")])]
        return node

    def _visit_loop(self, node: Any) -> list[ast.stmt]:
        depth, loop = self._depth, self._loops
        self._depth, self._loops = depth + 1, loop + 1
        self.generic_visit(node)
        self._depth = depth
        node.body.insert(0, _report("turn", depth, loop))
        return [_report("loop", depth), node, _report("loop", depth)]

    visit_For = visit_While = _visit_loop  # noqa: N815


def _report(what: str, *numbers: int) -> ast.stmt:
    function = ast.Attribute(ast.Name(PATHS, ast.Load()), what, ast.Load())
    return ast.Expr(ast.Call(function, [ast.Constant(number) for number in numbers], []))
