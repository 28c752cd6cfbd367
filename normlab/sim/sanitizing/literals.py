"""Find the negative indices that stand in a kernel's source as numbers, such as the -1 of `x[-1]`."""

import ast
import linecache
from functools import cache
from types import CodeType

from normlab.sim.language.source import parsing, position_of


@cache
def literal_indices(code: CodeType, instruction: int) -> frozenset[int]:
    """Return the negative numbers that the source at the instruction at byte offset `instruction` has as indices.

    That is any index written there as a number, as in `x[i, -1]` and `cuda.atomic.add(x, -1, value)`.
    """
    first, last, begin, end = position_of(code, instruction)
    if first is None or last is None:
        return frozenset()
    # As bytes, because an instruction's columns count the bytes of UTF-8: a kernel may name its variables in Greek.
    lines = [linecache.getline(code.co_filename, number).encode() for number in range(first, last + 1)]
    if not all(lines):  # no source, and so no number in it
        return frozenset()
    lines[-1] = lines[-1][:end]  # before the first line is cut, which may be the last one, too
    lines[0] = lines[0][begin:]
    try:
        # In parentheses, because the piece may have several lines, cut out of the parentheses that allowed that.
        with parsing:
            tree = ast.parse(b"(" + b"".join(lines) + b")", mode="eval").body
    except SyntaxError:  # an assignment, whose instruction spans a statement: `x[-1] += 1`
        return frozenset()
    indices: list[ast.expr] = []
    if isinstance(tree, ast.Subscript):
        indices = [tree.slice]
    elif isinstance(tree, ast.Call):
        indices = tree.args[1:2]  # of an atomic, of ldcg and the like: the array comes first, then the index
    parts = [part for index in indices for part in (index.elts if isinstance(index, ast.Tuple) else [index])]
    # The syntax tree has no negative numbers: -1 is a minus applied to the constant 1.
    return frozenset(
        -part.operand.value
        for part in parts
        if isinstance(part, ast.UnaryOp)
        and isinstance(part.op, ast.USub)
        and isinstance(part.operand, ast.Constant)
        and isinstance(part.operand.value, int)
    )
