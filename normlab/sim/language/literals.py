"""Read the literals in a kernel's syntax tree, and what Python itself computes from them before a kernel runs."""

import ast
import operator
from typing import Any

FOLDED: dict[type[ast.operator], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
}


def constant_int(node: ast.expr | None, whole: bool = True) -> int | None:
    """Return the value of an integer that Python itself computes from literals, such as -1 or 2**64 - 1, else None.

    A part of it, which is not the `whole`, may have any size: no integer of the device holds 2**64.
    """
    value = None
    match node:
        case ast.Constant(constant) if type(constant) is int:
            value = constant
        case ast.UnaryOp(ast.USub(), operand) if (part := constant_int(operand, False)) is not None:
            value = -part
        case ast.BinOp(left, operation, right) if type(operation) in FOLDED:
            one, other = constant_int(left, False), constant_int(right, False)
            # Python folds up to 128 bits, and 2**10**9 would be an int of a billion bits.
            large = isinstance(operation, (ast.Pow, ast.LShift)) and not 0 <= (other or 0) <= 64
            value = None if one is None or other is None or large else FOLDED[type(operation)](one, other)
    return value if value is None or not whole or -(1 << 63) <= value < 1 << 64 else None


def is_folded(base: ast.expr, exponent: ast.expr) -> bool:
    """Return whether both are literals and their power is a real number: Python computes it before a kernel runs."""
    try:
        return isinstance(ast.literal_eval(base) ** ast.literal_eval(exponent), (int, float))
    except (ValueError, TypeError, ArithmeticError):
        return False


def is_literal(node: ast.expr | None, kind: type) -> bool:
    """Return whether `node` is a literal of `kind`; an int must fit into an int64."""
    value = node.value if isinstance(node, ast.Constant) else None
    return type(value) is kind and not (isinstance(value, int) and value >= 1 << 63)
