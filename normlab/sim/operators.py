"""A kernel's code object, compiled anew so that its operators compute as the device's do.

- Division, modulo, powers, shifts and bit operations become calls of `arithmetic.OPERATORS`: 1 / 0 must not raise. A
  literal operand that makes the operator safe leaves it alone.
- A float literal becomes an `np.float64`. NumPy lets a Python float take the other operand's type, but the compiler
  makes it float64: `s = 0.0; s += x[i]` sums in double precision on a GPU, and so it does here.

File name and lines stay, so tracebacks show the caller's source. Without readable source only the literals are
replaced.
"""

import ast
import linecache
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType
from typing import Any

import numpy as np

from normlab.sim.arithmetic import OPERATORS
from normlab.sim.functions import popc

PREFIX = "_simulated_"
LARGEST_INT64 = (1 << 63) - 1


def _update_item(container: Any, index: Any, operation: Any, value: Any) -> None:
    container[index] = operation(container[index], value)


def _bit_count(value: Any) -> Any:
    return popc(value) if isinstance(value, (int, np.integer)) else value.bit_count()


OPERATOR_GLOBALS = {PREFIX + name: function for name, function in OPERATORS.items()} | {
    PREFIX + "item": _update_item,
    PREFIX + "bit_count": _bit_count,
}

_safe_codes: dict[int, tuple[CodeType, CodeType]] = {}


def safe_code(code: CodeType) -> CodeType:
    """Return `code` with the device's arithmetic."""
    if id(code) not in _safe_codes:
        _safe_codes[id(code)] = (code, _with_typed_floats(_recompiled(code)))  # the original is kept for its id
    return _safe_codes[id(code)][1]


def _recompiled(code: CodeType) -> CodeType:
    """Return `code` with its operators as calls, or as it is when its source is missing or has changed since."""
    source = "".join(linecache.getlines(code.co_filename))
    try:
        candidates = _compiled_file(code.co_filename, source)
    except SyntaxError:  # a notebook cell with magics, for one
        return code
    for plain, safe in candidates.get((code.co_qualname, code.co_firstlineno), ()):
        if _same(plain, code):
            return safe
    return code


@lru_cache(maxsize=64)
def _compiled_file(filename: str, source: str) -> dict[tuple[str, int], list[tuple[CodeType, CodeType]]]:
    """Compile a whole file plainly and safely; return the pairs of code objects by name and line."""
    tree = ast.parse(source)
    plain = compile(tree, filename, "exec", dont_inherit=True)
    safe = compile(ast.fix_missing_locations(SafeOperators().visit(tree)), filename, "exec", dont_inherit=True)
    pairs: dict[tuple[str, int], list[tuple[CodeType, CodeType]]] = {}
    for one, other in zip(_functions(plain), _functions(safe), strict=True):
        pairs.setdefault((one.co_qualname, one.co_firstlineno), []).append((one, other))
    return pairs


def _functions(code: CodeType) -> Iterator[CodeType]:
    """Walk through the code objects inside `code`."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _functions(constant)


def _same(one: CodeType, other: CodeType) -> bool:
    """Return whether two code objects do the same: the file may have changed since the kernel was loaded."""

    def content(code: CodeType) -> tuple:
        constants = [repr(constant) for constant in code.co_consts if not isinstance(constant, CodeType)]
        return code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants

    return content(one) == content(other)


class SafeOperators(ast.NodeTransformer):
    """Replaces operators that may raise, or widen wrongly, by calls."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """a / b becomes _simulated_Div(a, b)."""
        self.generic_visit(node)
        if _harmless(node.op, node.left, node.right):
            return node
        return ast.copy_location(_call(_function(node.op), node.left, node.right), node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        """a /= b becomes a = _simulated_Div(a, b); a[i] /= b evaluates a and i once."""
        self.generic_visit(node)
        target = node.target
        if _harmless(node.op, None, node.value):
            return node
        if isinstance(target, ast.Name):
            value = _call(_function(node.op), ast.Name(target.id, ast.Load()), node.value)
            return ast.copy_location(ast.Assign([target], value), node)
        if isinstance(target, ast.Subscript) and not any(
            isinstance(part, ast.Slice) for part in ast.walk(target.slice)
        ):
            update = _call(_name("item"), target.value, target.slice, _function(node.op), node.value)
            return ast.copy_location(ast.Expr(update), node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """n.bit_count() becomes popc(n): Python's, and NumPy's, counts the bits of |n|."""
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "bit_count" and not node.args:
            return ast.copy_location(_call(_name("bit_count"), node.func.value), node)
        return node


def _name(name: str) -> ast.Name:
    return ast.Name(PREFIX + name, ast.Load())


def _function(operation: ast.operator) -> ast.Name:
    return _name(type(operation).__name__)


def _call(function: ast.expr, *arguments: ast.expr) -> ast.Call:
    return ast.Call(function, list(arguments), [])


def _harmless(operation: ast.operator, left: ast.expr | None, right: ast.expr) -> bool:
    """Return whether literals make sure that NumPy's operator does what the device's does."""
    match operation:
        case ast.Div():
            return _literal(left, float) or _literal(right, float)
        case ast.FloorDiv() | ast.Mod():
            return _literal(right, int) and ast.literal_eval(right) != 0
        case ast.Pow():
            return left is not None and _folded(left, right)
        case ast.LShift() | ast.RShift():
            return _literal(right, int)
        case ast.BitAnd() | ast.BitOr() | ast.BitXor():
            return _literal(left, int) or _literal(right, int)
        case _:
            return type(operation).__name__ not in OPERATORS


def _folded(base: ast.expr, exponent: ast.expr) -> bool:
    """Return whether Python itself turns `base ** exponent` into a real constant, before any compiler sees it."""
    try:
        return isinstance(ast.literal_eval(base) ** ast.literal_eval(exponent), (int, float))
    except (ValueError, TypeError, ArithmeticError):
        return False


def _literal(node: ast.expr | None, kind: type) -> bool:
    """Return whether `node` is a literal of `kind`; an int must fit into an int64."""
    value = node.value if isinstance(node, ast.Constant) else None
    return type(value) is kind and not (isinstance(value, int) and value > LARGEST_INT64)


def _with_typed_floats(code: CodeType) -> CodeType:
    """Return `code` with every float constant as an np.float64, in the functions inside it too."""
    return code.replace(co_consts=tuple(map(_typed, code.co_consts)))


def _typed(constant: Any) -> Any:
    if isinstance(constant, CodeType):
        return _with_typed_floats(constant)
    if type(constant) is tuple:
        return tuple(map(_typed, constant))
    return np.float64(constant) if type(constant) is float else constant
