"""Find loops that only wait: `while cuda.atomic.cas(lock, 0, 0, 1) != 0: pass`, and what decides how long loops run."""

import ast
from functools import cache, lru_cache
from types import CodeType

from normlab.sim.language.operators import function_tree
from normlab.sim.language.source import position_of, source_of, tree_of

Position = tuple[int, int]  # line and column, in bytes, at which an expression begins
LEAVING = (ast.Break, ast.Return)
IDLE = ("nanosleep", "threadfence", "threadfence_block", "threadfence_system", "syncwarp")


@cache
def in_spin(code: CodeType, instruction: int) -> bool:
    """Return whether the instruction at byte offset `instruction` decides if a loop that only waits goes on."""
    # By line and column: several calls may share a line, and only one of them may decide.
    line, _, column, _ = position_of(code, instruction)
    return (line, column) in _spins(source_of(code.co_filename))


@cache
def deciding_names(code: CodeType) -> frozenset[str]:
    """Return the variables that decide how often a function's loops run: counters, and what their conditions read.

    A loop in which none of them changes waits: `while cuda.atomic.cas(lock, 0, 0, 1) != 0: tries += 1` does.
    """
    tree = function_tree(code)
    deciding: list[ast.AST] = []
    for node in ast.walk(tree) if tree is not None else ():
        match node:
            # The range of a for loop is fixed when it begins, so only its counter says how far it has come.
            case ast.For(target):
                deciding.append(target)
            case ast.While(test):
                deciding.append(test)
            # `while True: … if done: break` ends by the condition of the branch.
            case ast.If(test) if any(isinstance(part, LEAVING) for part in ast.walk(node)):
                deciding.append(test)
    return frozenset(part.id for one in deciding for part in ast.walk(one) if isinstance(part, ast.Name))


@lru_cache(maxsize=64)
def _spins(source: str) -> frozenset[Position]:
    """Return where the calls begin that decide if the waiting loops of a file go on."""
    loops = [node for node in ast.walk(tree_of(source)) if isinstance(node, ast.While)]
    conditions = [condition for loop in loops for condition in _waits_for(loop)]
    # The calls in a condition, because the atomics among them are what an observer sees happen.
    calls = [part for condition in conditions for part in ast.walk(condition) if isinstance(part, ast.Call)]
    return frozenset((call.lineno, call.col_offset) for call in calls)


def _waits_for(loop: ast.While) -> list[ast.expr]:
    """Return the conditions on which a loop goes on or ends, if it does nothing else; otherwise nothing."""
    ends = [part.test for part in loop.body if isinstance(part, ast.If) and _only_breaks(part)]
    rest = [part for part in loop.body if not (isinstance(part, ast.If) and _only_breaks(part))]
    # One statement that does work may change what the conditions read: such a loop does not only wait.
    return [loop.test, *ends] if all(map(_idle, rest)) else []


def _only_breaks(branch: ast.If) -> bool:
    return not branch.orelse and all(isinstance(part, ast.Break) or _idle(part) for part in branch.body)


def _idle(statement: ast.stmt) -> bool:
    """Return whether a statement changes nothing: `pass`, a text, a fence, a sleep."""
    if isinstance(statement, ast.Pass):
        return True
    if not isinstance(statement, ast.Expr):
        return False
    value = statement.value
    return isinstance(value, ast.Constant) or (
        isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in IDLE
    )
