"""Compile a kernel's code anew so that its operators compute as the device's do.

- Division, modulo, powers, shifts and bit operations become calls of `arithmetic.OPERATORS`: 1 / 0 must not raise. A
  literal operand that makes the operator safe leaves it alone.
- A float literal becomes an `np.float64`. NumPy lets a Python float take the other operand's type, but the compiler
  makes it float64: `s = 0.0; s += x[i]` sums in double precision on a GPU, and so it does here.
- The same holds for an integer: `s = 0; s += x[i]` is float64, and `2 * n` wraps at 64 bits. An integer literal that is
  an operand, is assigned or is returned becomes an `np.int64`. So does an index (see `indices.py`) that meets anything
  else. Among indices, in subscripts and in calls integers stay Python's: they are three times as fast.

File name and lines stay, so tracebacks show the caller's source. Without readable source only the literals are
replaced.
"""

import ast
from functools import lru_cache
from types import CodeType
from typing import Any, cast

import numpy as np

from normlab.sim.language.arithmetic import OPERATORS, int64s
from normlab.sim.language.fields import EXTENTS, FieldAttributes
from normlab.sim.language.functions import popc
from normlab.sim.language.indices import boolean_names, index_names, is_boolean, is_index, is_large, of_several_axes
from normlab.sim.language.integers import adopt_scalar, as_boolean
from normlab.sim.language.literals import constant_int, is_folded, is_literal
from normlab.sim.language.source import definitions_in, first_line, functions_in, parsing, source_of
from normlab.sim.language.variables import CAST_GLOBALS, FunctionTypes, Types, VariableTypes

PREFIX = "_simulated_"
# A constant {INT_MARK, 5} in a syntax tree is np.int64(5) in the code. It is a frozenset, because Python computes
# `3 * (1, 2)` while it compiles: it would repeat a tuple that stands beside a literal.
INT_MARK = "normlab.sim: an np.int64"
# The operators whose result's type depends on both operands: there a Python int would take the other operand's type.
TYPED = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)
BITWISE = (ast.BitAnd, ast.BitOr, ast.BitXor)


def _update_item(container: Any, index: Any, old: Any, operation: Any, value: Any) -> None:
    container[index] = operation(old, value)


def _bit_count(value: Any) -> Any:
    return popc(value) if isinstance(value, (int, np.integer)) else value.bit_count()


OPERATOR_GLOBALS = {PREFIX + name: function for name, function in OPERATORS.items()} | {
    PREFIX + "item": _update_item,
    PREFIX + "bit_count": _bit_count,
    PREFIX + "bool": as_boolean,
    PREFIX + "int64": np.int64,
    PREFIX + "int64s": int64s,
    **CAST_GLOBALS,
}

Marks = tuple[type[ast.NodeTransformer], ...]
FileTypes = frozenset[tuple[tuple[str, int], FunctionTypes]]  # by a function's name and first line
_safe_codes: dict[tuple[int, Marks, FileTypes, frozenset[str]], tuple[CodeType, CodeType]] = {}
_trees: dict[int, tuple[CodeType, ast.FunctionDef]] = {}  # by the id of the safe code


def safe_code(
    code: CodeType, marks: Marks = (), types: Types | None = None, fields: frozenset[str] = frozenset()
) -> CodeType:
    """Return `code` with the device's arithmetic; it is compiled once for the same other arguments.

    `marks`: with an observer's marks (paths.py, steps.py, turns.py); `types`: with the compiler's types (variables.py);
    `fields`: the names of the fields of the launch's records; an attribute with such a name is no index (fields.py).
    """
    # A place is (file, function's name, first line). Other files' functions do not matter for this code.
    here = frozenset((place[1:], known) for place, known in (types or {}).items() if place[0] == code.co_filename)
    # By identity: code objects compare equal when their contents do, and two files may hold the same function.
    key = id(code), marks, here, fields & EXTENTS
    if key not in _safe_codes:
        with parsing:
            safe, tree = _recompiled(code, *key[1:])
            _safe_codes[key] = code, safe  # keeping `code` keeps its id
            if tree is not None:
                _trees[id(safe)] = safe, tree
    return _safe_codes[key][1]


def function_tree(code: CodeType) -> ast.FunctionDef | None:
    """Return the syntax tree of `code`, a result of `safe_code`; None for a lambda and for code without source.

    A reader of the tree passes each constant through `typed_constant`, as `safe_code` has done with the code's.
    """
    return _trees[id(code)][1] if id(code) in _trees else None


def _recompiled(
    code: CodeType, marks: Marks, types: FileTypes, fields: frozenset[str]
) -> tuple[CodeType, ast.FunctionDef | None]:
    """Return `code` with its operators as calls, and its tree; as it is when its source is missing or has changed."""
    source = source_of(code.co_filename)
    try:
        part = _part_of(source, code.co_firstlineno)
        # The whole file, where the part does not do: a module's name imported under a condition is compiled otherwise.
        for text in (part, source):
            candidates = _compiled(code.co_filename, text, marks, types, fields)
            # A name and a line may belong to several code objects, lambdas in one line for example.
            for plain, safe, tree in candidates.get((code.co_qualname, code.co_firstlineno), ()):
                if _same(plain, code):
                    return safe, tree
    except SyntaxError:  # a notebook cell with magics, for one
        pass
    return _with_typed_numbers(code), None


def _part_of(source: str, line: int) -> str:
    """Return a file's imports and its statement around a line, and empty lines in place of all others.

    A kernel's file may be long, and its kernel short. How Python calls a function of a module depends on the imports.
    """
    parted = ["\n"] * len(lines := source.splitlines(keepends=True))
    for first, last, imports in _statements(source):
        if imports or first <= line <= last:
            parted[first - 1 : last] = lines[first - 1 : last]
    return "".join(parted)


@lru_cache(maxsize=1024)
def _statements(source: str) -> list[tuple[int, int, bool]]:
    """Return of each statement of a file its first and its last line, and whether it is an import."""
    return [
        (first_line(node), node.end_lineno or node.lineno, isinstance(node, (ast.Import, ast.ImportFrom)))
        for node in ast.parse(source).body
    ]


@lru_cache(maxsize=4096)  # a module that is imported again finds the same codes, and what others have made of them
def _compiled(
    filename: str, source: str, marks: Marks, types: FileTypes, fields: frozenset[str]
) -> dict[tuple[str, int], list[tuple]]:
    """Compile plainly and safely; return by name and line (plain code, safe code, tree of the latter)."""
    tree = ast.parse(source)
    plain = compile(tree, filename, "exec", dont_inherit=True)
    # The plain compilation is kept beside the rewritten one: it tells whether the file still holds this code.
    if types:  # before the operators, so that their rules see that a variable with a cast is no index
        tree = VariableTypes(dict(types)).visit(tree)
    if fields:  # likewise
        tree = FieldAttributes(fields).visit(tree)
    tree = SafeOperators().visit(tree)
    for mark in marks:
        tree = mark().visit(tree)
    safe = compile(ast.fix_missing_locations(tree), filename, "exec", dont_inherit=True)
    trees = definitions_in(tree)
    found: dict[tuple[str, int], list[tuple]] = {}
    # No rewrite adds or removes a function, so both compilations have the same functions in the same order.
    for one, other in zip(functions_in(plain), functions_in(safe), strict=True):
        entry = one, _with_typed_numbers(other), trees.get((one.co_name, one.co_firstlineno))
        found.setdefault((one.co_qualname, one.co_firstlineno), []).append(entry)
    return found


def _same(one: CodeType, other: CodeType) -> bool:
    """Return whether two code objects do the same: the file may have changed since the kernel was loaded."""

    def content(code: CodeType) -> tuple:
        # repr tells 1 from 1.0 and 0.0 from -0.0, which compare equal.
        constants = [repr(constant) for constant in code.co_consts if not isinstance(constant, CodeType)]
        return code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants

    return content(one) == content(other)


class SafeOperators(ast.NodeTransformer):
    """Replaces operators that may raise, or widen wrongly, by calls, and integers that are no index by np.int64."""

    def __init__(self) -> None:
        """Start outside of any function."""
        self._indices: dict[str, int] = {}  # the function's variables that are never anything but an index (indices.py)
        self._booleans: set[str] = set()  # its variables that hold the result of a comparison at some place
        self._in_index = False  # inside the brackets of a subscript, or of range: only integers are there

    def _visit_function(self, node: Any) -> ast.AST:
        outer = self._indices, self._booleans, self._in_index
        # Each function has variables of its own: what is an index outside may be a float inside.
        self._indices, self._booleans, self._in_index = index_names(node), boolean_names(node), False
        if isinstance(node, ast.Lambda):
            node.body = self._typed(node.body, True)
        self.generic_visit(node)
        self._indices, self._booleans, self._in_index = outer
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _visit_function  # noqa: N815

    def _visit_with(self, in_index: bool, node: Any) -> Any:
        """Visit a part of the tree in which integers are indices, or are not."""
        outer, self._in_index = self._in_index, in_index
        node = self.visit(node)
        self._in_index = outer
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Visit the brackets of a subscript as an index."""
        if isinstance(node.value, ast.Tuple):
            node.value = self._typed(node.value)
        node.value = self._visit_with(False, node.value)
        node.slice = self._visit_with(True, node.slice)
        return node

    def _typed(self, node: Any, leaves: bool = False) -> Any:
        """Return `node` as an np.int64 if it is an integer that may meet more than indices.

        If the value `leaves` for where the source does not show it to be a comparison's, a bool is a `Boolean`.
        """
        # NumPy takes a Python int as an index faster than an np.int64, and the brackets hold nothing else.
        if self._in_index:
            return node
        if isinstance(node, ast.IfExp):
            node.body, node.orelse = self._typed(node.body, leaves), self._typed(node.orelse, leaves)
            return node
        if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load):
            node.elts = [self._typed(part, True) for part in node.elts]
            return node
        if leaves and is_boolean(node, self._booleans):
            return ast.copy_location(_call(_name("bool"), node), node)
        # A literal becomes a constant of the code object, so it costs no call when the kernel runs.
        if (value := constant_int(node)) is not None:
            return ast.copy_location(ast.Constant(cast(Any, frozenset((INT_MARK, value)))), node)
        several = of_several_axes(node)
        if several or is_index(node, self._indices):
            return ast.copy_location(_call(_name("int64s" if several else "int64"), node), node)
        if isinstance(node, ast.BoolOp):
            node.values = [self._typed(part, leaves) for part in node.values]
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """Turn s = 0 into s = np.int64(0), unless s is only ever an index."""
        names = [part for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Name)]
        # What is stored into an array or a record takes their dtype, so its own type does not matter.
        if all(isinstance(target, (ast.Name, ast.Tuple)) for target in node.targets) and not all(
            name.id in self._indices for name in names
        ):
            node.value = self._typed(node.value)
        return self.generic_visit(node)

    def _visit_named(self, node: Any) -> ast.AST:
        """Turn (s := 0) into (s := np.int64(0)), and s: int = 0 likewise: such a variable is never an index."""
        node.value = self._typed(node.value)
        return self.generic_visit(node)

    visit_NamedExpr = visit_AnnAssign = _visit_named  # noqa: N815

    def visit_For(self, node: ast.For) -> ast.AST:
        """Turn for s in (1, x) into for s in (np.int64(1), x), unless s is only ever an index."""
        names = [part.id for part in ast.walk(node.target) if isinstance(part, ast.Name)]
        if isinstance(node.iter, ast.Tuple) and not all(name in self._indices for name in names):
            node.iter = self._typed(node.iter)
        return self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> ast.AST:
        """Turn `return 0` into `return np.int64(0)`."""
        node.value = self._typed(node.value, True)
        return self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        """Turn -(a > b) into -_simulated_bool(a > b)."""
        # NumPy refuses the minus of a bool; Numba makes an int64 of it.
        if isinstance(node.op, (ast.USub, ast.UAdd)) and is_boolean(node.operand, self._booleans):
            node.operand = ast.copy_location(_call(_name("bool"), node.operand), node)
        return self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """Turn x == 16777217 into x == np.int64(16777217), unless all sides are indices."""
        # Numba compares in float64. NumPy does so with an np.int64, in 1,100 ns; with an int in float32, in 54 ns.
        sides = [node.left, *node.comparators]
        if not all(is_index(side, self._indices) for side in sides):
            node.left, *node.comparators = [
                self._typed(side) if is_large(side, self._indices) else side for side in sides
            ]
        return self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """Turn a / b into _simulated_Div(a, b), and x + 1 into x + np.int64(1)."""
        operands = node.left, node.right
        harmless = _harmless(node.op, *operands)
        if harmless and isinstance(node.op, ast.Pow):  # Python folds the literals into one constant
            return node
        # Among indices Python's own ints are exact, as long as the result is an index, and three times as fast.
        indices = all(is_index(operand, self._indices) for operand in operands)
        wraps = indices and isinstance(node.op, (ast.Mult, ast.LShift)) and not is_index(node, self._indices)
        booleans = all(is_boolean(operand, self._booleans) for operand in operands)
        if booleans and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)):
            # NumPy's bools do not add up as integers; with one of them a `Boolean`, they do.
            node.left = ast.copy_location(_call(_name("bool"), node.left), node)
        if (wraps or not indices) and constant_int(node) is None:
            # Inside brackets, too, where all other indices stay Python's.
            outer, self._in_index = self._in_index, self._in_index and not wraps
            literals = [one for one in operands if constant_int(one) is not None]
            # Of bit operations only that with a literal, which may be too large for an index.
            if isinstance(node.op, TYPED) or (isinstance(node.op, BITWISE) and len(literals) == 1):
                node.left, node.right = self._typed(node.left), self._typed(node.right)
            elif isinstance(node.op, ast.LShift):  # the left operand alone decides the type of a shift
                node.left = self._typed(node.left)
            self._in_index = outer
        self.generic_visit(node)
        if harmless:
            return node
        return ast.copy_location(_call(_function(node.op), node.left, node.right), node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        """Turn a /= b into a = _simulated_Div(a, b); evaluate a and i of a[i] /= b once."""
        index = isinstance(node.target, ast.Name) and node.target.id in self._indices
        harmless = _harmless(node.op, None, node.value)
        if not index and isinstance(node.op, TYPED):
            node.value = self._typed(node.value, True)
        self.generic_visit(node)
        target = node.target
        if harmless:
            return node
        if isinstance(target, ast.Name):
            value = _call(_function(node.op), ast.Name(target.id, ast.Load()), node.value)
            return ast.copy_location(ast.Assign([target], value), node)
        # An update of a slice stays NumPy's own operator, which works on whole arrays.
        if isinstance(target, ast.Subscript) and not any(
            isinstance(part, ast.Slice) for part in ast.walk(target.slice)
        ):
            # As in Python's own update, `a[f()] /= b` calls f once, and loads the element before it computes b.
            container, place = PREFIX + "container", PREFIX + "index"
            old = ast.Subscript(ast.Name(container, ast.Load()), ast.Name(place, ast.Load()), ast.Load())
            update = _call(
                _name("item"),
                ast.NamedExpr(ast.Name(container, ast.Store()), target.value),
                ast.NamedExpr(ast.Name(place, ast.Store()), target.slice),
                ast.copy_location(old, target),
                _function(node.op),
                node.value,
            )
            return ast.copy_location(ast.Expr(update), node)
        return node

    def _given(self, argument: ast.expr, in_index: bool) -> ast.expr:
        """Visit an argument; a device function may add up the comparisons that it is given."""
        visited = self._visit_with(in_index, argument)
        boolean = is_boolean(argument, self._booleans)
        return ast.copy_location(_call(_name("bool"), visited), argument) if boolean else visited

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Turn n.bit_count() into popc(n), because Python and NumPy count the bits of |n|."""
        # The bounds of range are indices: an np.int64 there would make every counter one, and slow.
        of_range = isinstance(node.func, ast.Name) and node.func.id == "range"
        node.func = self._visit_with(False, node.func)
        node.args = [self._given(argument, of_range) for argument in node.args]
        for keyword in node.keywords:
            keyword.value = self._given(keyword.value, False)
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
            # A float literal is an np.float64 in the code, and its division by 0 gives inf without an error.
            return is_literal(left, float) or is_literal(right, float)
        case ast.FloorDiv() | ast.Mod():
            # Only a divisor of 0 raises.
            return is_literal(right, int) and ast.literal_eval(right) != 0
        case ast.Pow():
            # Python computes `2 ** 10` while it compiles; no power is left when the kernel runs.
            return left is not None and is_folded(left, right)
        case ast.LShift() | ast.RShift():
            return is_literal(right, int)
        case ast.BitAnd() | ast.BitOr() | ast.BitXor():
            return is_literal(left, int) or is_literal(right, int)
        case _:
            return type(operation).__name__ not in OPERATORS


def _with_typed_numbers(code: CodeType) -> CodeType:
    """Return `code` with float constants as np.float64 and marked ints as np.int64, in the functions inside it too."""
    return code.replace(co_consts=tuple(map(typed_constant, code.co_consts)))


def typed_constant(constant: Any) -> Any:
    """Return a constant of a syntax tree or of its code as kernels compute with it."""
    if isinstance(constant, CodeType):
        return _with_typed_numbers(constant)
    if type(constant) is tuple:
        return tuple(map(typed_constant, constant))
    if type(constant) is frozenset and INT_MARK in constant:
        (value,) = constant - {INT_MARK}
        return adopt_scalar(value)
    return np.float64(constant) if type(constant) is float else constant
