"""Give a kernel's variables the types that the compiler infers for them.

Numba unites the types of a variable where two ways through the kernel meet: after `if c: s = 1.0`, a float32 `s` is a
float64 on both ways. A value in the simulator has its own type alone. With `simulate(kernel, check=True)` the compiler
says at which lines a variable has which type, and `VariableTypes` rewrites the kernel's syntax tree with a cast there.
Only variables get casts whose assignments differ in type.
"""

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from normlab.sim.language.integers import INTEGER_CASTS, TYPES, Boolean, as_int64
from normlab.sim.language.source import first_line

CAST = "_simulated_as_"  # the kernel's globals: _simulated_as_float64 and others
AS_INTEGER = CAST + "integer"


@dataclass(frozen=True)
class FunctionTypes:
    """What the compiler knows of one function, as far as the simulator's values have another type on their own.

    `loads`: (line, variable, type) of each place where the compiled function reads the variable. `choices`: (line,
    type, whether its values differ in type) of each `a if c else b` and `a or b`. `result`: the type to return, None
    for the value's own. `integers`: the parameters that may be Python ints, int64 to the compiler, and meet floats.
    `complexes`: there are complex literals, complex128 to the compiler. `overloads`: (function, what the compiler takes
    for it by `@overload`) of the functions that it calls.
    """

    loads: frozenset[tuple[int, str, str]] = frozenset()
    choices: frozenset[tuple[int, str, bool]] = frozenset()
    result: str | None = None
    integers: tuple[str, ...] = ()
    complexes: bool = False
    overloads: frozenset[tuple[FunctionType, FunctionType]] = frozenset()


Place = tuple[str, str, int]  # a function's file, name and first line
Types = dict[Place, FunctionTypes]


def place_of(code: Any) -> Place:
    """Return the place of a function's code."""
    return code.co_filename, code.co_name, code.co_firstlineno


def holder_of(name: str) -> Any:
    """Return the class of the values that have the type of Numba with this name."""
    if name == "bool":
        return Boolean
    return INTEGER_CASTS[name].holder if name in INTEGER_CASTS else TYPES[name]


def _cast_to(name: str) -> Callable[[Any], Any]:
    """Return a function that gives a value the type of Numba with this name."""
    kind, holder = TYPES[name], holder_of(name)

    def cast(value: Any) -> Any:
        # Most values have the type already, and a class compares faster than a cast makes a new object.
        return value if type(value) is holder else kind(value)

    if holder is Boolean:  # NumPy's bool would not add up as an integer
        return lambda value: Boolean(kind(value))

    return cast


NAMES = ("bool", *INTEGER_CASTS, "float16", "float32", "float64", "bfloat16", "complex64", "complex128")
CAST_GLOBALS = {CAST + name: _cast_to(name) for name in NAMES} | {AS_INTEGER: as_int64}


class VariableTypes(ast.NodeTransformer):
    """Puts casts into the functions of a file; `types`: by the function's name and first line."""

    def __init__(self, types: dict[tuple[str, int], FunctionTypes]):
        """Start outside of any function."""
        self._types = types
        self._function: FunctionTypes | None = None
        self._reads: dict[str, str] = {}  # in the present statement: variable → type

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Put casts into a function of which the compiler has told the types."""
        outer = self._function, self._reads
        self._function, self._reads = self._types.get((node.name, first_line(node))), {}
        node.body = [self.visit(statement) for statement in node.body]
        if self._function is not None:
            # Before the first statement, so that every read finds the int64, also one without a cast of its own.
            node.body[:0] = [
                ast.copy_location(ast.Assign([ast.Name(name, ast.Store())], _call(AS_INTEGER, name)), node)
                for name in self._function.integers
            ]
        self._function, self._reads = outer
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        """Leave a lambda alone: its variables are its own."""
        return node

    def visit(self, node: ast.AST) -> Any:
        """Visit a node; before a statement, look up what its variables are."""
        if self._function is not None and isinstance(node, ast.stmt):
            # A statement's own expressions come before its body, so they are visited while `_reads` is theirs.
            self._reads = self._read_in(_head(node))
        return super().visit(node)

    def _read_in(self, heads: Iterable[ast.AST]) -> dict[str, str]:
        """Return the type of each variable that is read with one type in the lines of `heads`."""
        assert self._function is not None
        found: dict[str, set[str]] = {}
        for head in heads:
            for line, name, kind in self._function.loads:
                if _holds(head, line):
                    found.setdefault(name, set()).add(kind)
        # The compiler tells lines, not columns: where a line reads a variable as two types, no cast fits both reads.
        return {name: min(kinds) for name, kinds in found.items() if len(kinds) == 1 and min(kinds) in NAMES}

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """Turn 2j into as_complex128(2j)."""
        if self._function is not None and self._function.complexes and type(node.value) is complex:
            return ast.copy_location(ast.Call(ast.Name(CAST + "complex128", ast.Load()), [node], []), node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Turn s into as_float64(s)."""
        if isinstance(node.ctx, ast.Load) and node.id in self._reads:
            return ast.copy_location(_call(CAST + self._reads[node.id], node.id), node)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        """Turn s += x into s = as_float64(s) + x."""
        # As a target the name is not read, so `visit_Name` would not cast it, and yet `+=` reads it first.
        target = node.target
        if not isinstance(target, ast.Name) or target.id not in self._reads:
            return self.generic_visit(node)
        read = ast.copy_location(_call(CAST + self._reads[target.id], target.id), target)
        updated = ast.copy_location(ast.BinOp(read, node.op, self.visit(node.value)), node)
        return ast.copy_location(ast.Assign([target], updated), node)

    def _visit_choice(self, node: Any) -> ast.AST:
        """Turn a if c else b, whose values differ in type, into as_float64(a if c else b).

        A choice within this one may lie on the same lines: with two types to choose from, there is no cast.
        """
        # All choices whose line is within this one's lines, because those are all that tells one choice from another.
        kinds = set()
        differ = False
        for line, kind, differs in self._function.choices if self._function is not None else ():
            if _holds(node, line):
                kinds.add(kind)
                differ |= differs
        self.generic_visit(node)
        if not differ or len(kinds) != 1 or min(kinds) not in NAMES:
            return node
        return ast.copy_location(ast.Call(ast.Name(CAST + min(kinds), ast.Load()), [node], []), node)

    visit_IfExp = visit_BoolOp = _visit_choice  # noqa: N815

    def visit_Return(self, node: ast.Return) -> ast.AST:
        """Turn return x into return as_float64(x), if other returns have another type."""
        self.generic_visit(node)
        if self._function is not None and self._function.result is not None and node.value is not None:
            # A device function has one result type, whichever return it leaves by.
            node.value = ast.Call(ast.Name(CAST + self._function.result, ast.Load()), [node.value], [])
        return node


def _head(node: ast.stmt) -> list[ast.AST]:
    """Return what a statement itself evaluates: of a loop or a branch, what stands before its body."""
    match node:
        case ast.If(test) | ast.While(test):
            return [test]
        case ast.For(target, iterable):
            return [target, iterable]
        case ast.FunctionDef() | ast.ClassDef() | ast.With() | ast.Try():
            return []
        case ast.Match(subject):
            return [subject]
    return [node]


def _holds(node: Any, line: int) -> bool:
    """Return whether a line is one of a node's."""
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _call(function: str, name: str) -> ast.Call:
    return ast.Call(ast.Name(function, ast.Load()), [ast.Name(name, ast.Load())], [])
