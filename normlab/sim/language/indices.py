"""Find the indices among a kernel's variables: integers that stay Python's, because they are fast and do not overflow.

`operators.py` gives every other integer its 64 bits. An index is made of thread and block indices, extents, loop
counters of `range` and literals, by operators that do not feed a variable back into itself, except to shrink it as in
`half //= 2`. A product of too many of these, such as a hash, is no index: it wraps at 64 bits.
"""

import ast
from collections.abc import Iterator

import numpy as np

from normlab.sim.language.literals import constant_int

AXES = ("threadIdx", "blockIdx", "blockDim", "gridDim")
COUNTS = ("size", "ndim", "laneid", "warpsize")
# `bits_of` counts so few bits for an extent, because extents that are multiplied bound each other: their product counts
# an array's elements. A product of five extents, or of a thread's index and a literal of 31 bits, is still an index.
BITS, MOST_BITS = 7, 38
# Operators that may feed a variable back into itself: none of them makes it larger.
SHRINKING = (ast.FloorDiv, ast.RShift, ast.Mod, ast.BitAnd)


def is_index(node: ast.expr, names: dict[str, int]) -> bool:
    """Return whether `node` is an index, given the bits of those variables that are."""
    return bits_of(node, names) is not None


def bits_of(node: ast.expr, names: dict[str, int]) -> int | None:
    """Return about how many bits an index has; None if `node` is no index."""
    match node:
        case ast.Constant(value):
            # Two literals below 2**62 add up to less than 2**63. `type` and not isinstance: True is an int, too.
            return value.bit_length() if type(value) is int and value < 1 << 62 else None
        case ast.Name(name):
            return names.get(name)
        case ast.UnaryOp(ast.USub() | ast.UAdd() | ast.Invert(), operand):
            return bits_of(operand, names)
        case ast.BinOp(left, operation, right):
            return _bits_after(operation, left, right, names)
        case ast.IfExp(_, chosen, other):
            return bits_of(ast.BoolOp(ast.Or(), [chosen, other]), names)  # either one, as of `a or b`
        case ast.BoolOp(_, operands) | ast.Call(ast.Name("min" | "max" | "abs"), operands):
            bits = [bits_of(operand, names) for operand in operands]
            return None if None in bits else max(bits)  # type: ignore[type-var]
        case ast.Attribute(value, "x" | "y" | "z"):
            # `cuda.threadIdx.x`, and `threadIdx.x` after `from numba.cuda import threadIdx`.
            named = value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", "")
            return BITS if named in AXES else None
        case ast.Attribute(_, name):
            return BITS if name in COUNTS else None
        case ast.Subscript(ast.Attribute(_, "shape")) | ast.Call(ast.Attribute(_, "grid" | "gridsize")):
            return BITS
        case ast.Call(ast.Name("len")):
            return BITS
    return None


def is_large(node: ast.expr, names: dict[str, int]) -> bool:
    """Return whether `node` is an index, or a literal, that a float32 may not hold."""
    value = constant_int(node)
    if value is not None:  # 10**9 is a float32, and 2**31 - 1 is none; a literal from 2**63 on is a uint64
        return value >= 1 << 63 or int(np.float32(value)) != value
    return (bits_of(node, names) or 0) > 24


def of_several_axes(node: ast.expr) -> bool:
    """Return whether `node` is, or may be, a tuple of indices: `x.shape` or `cuda.grid(2)`, unlike `cuda.grid(1)`."""
    match node:
        case ast.Attribute(_, "shape"):
            return True
        case ast.Call(ast.Attribute(_, "grid" | "gridsize"), [ast.Constant(1)]):
            return False
        case ast.Call(ast.Attribute(_, "grid" | "gridsize")):
            return True
    return False


def _bits_after(operation: ast.operator, left: ast.expr, right: ast.expr, names: dict[str, int]) -> int | None:
    """Return about how many bits the result of an operator has; None if it is no index."""
    one, other = bits_of(left, names), bits_of(right, names)
    if one is None or other is None:
        return None
    match operation, right:
        case ast.Mult(), _:
            bits = one + other
        case ast.LShift(), ast.Constant(int(count)):
            bits = one + count
        # A power, and a shift by what is no literal, may leave 64 bits.
        case ast.Pow() | ast.Div() | ast.LShift() | ast.MatMult(), _:
            return None
        case _:
            return max(one, other)
    return bits if bits <= MOST_BITS else None


def index_names(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> dict[str, int]:
    """Return the variables of `function` that are never anything but an index, with the bits of each."""
    arguments = function.args
    # What a caller passes, or another scope assigns, may be anything.
    never = {a.arg for a in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]}
    bound: dict[str, list[ast.expr]] = {}
    for node in _own_nodes(function):
        match node:
            case ast.Assign(targets, value):
                for target in targets:
                    _bind(target, value, bound, never)
            # `i += 1` feeds i back into itself and may grow without end: only a loop of range bounds its counter.
            case ast.AugAssign(ast.Name(name), operation, value):
                if isinstance(operation, SHRINKING):
                    bound.setdefault(name, []).append(value)
                else:
                    never.add(name)
            case ast.For(target, iterable):
                _bind_turns(target, iterable, bound, never)
            case ast.Global(names) | ast.Nonlocal(names):
                never.update(names)
            case ast.comprehension(target) | ast.NamedExpr(target) | ast.AnnAssign(target):
                never.update(_names_in(target))
    found: dict[str, int] = {}
    while True:  # from nothing upwards, so that a variable made of itself is never found
        more = {
            # No expression is bound to a counter of range: it has the bits of an extent.
            name: max((bits_of(value, found) or 0 for value in values), default=BITS)
            for name, values in bound.items()
            if name not in never and name not in found and all(is_index(value, found) for value in values)
        }
        if not more:
            return found
        found |= more


def _bind(target: ast.expr, value: ast.expr, bound: dict[str, list[ast.expr]], never: set[str]) -> None:
    """Note under each name in `target` the expression that it stands for."""
    if isinstance(target, ast.Name):
        bound.setdefault(target.id, []).append(value)
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for one, other in zip(target.elts, value.elts, strict=True):
            _bind(one, other, bound, never)
    elif isinstance(target, ast.Tuple):
        shape = isinstance(value, ast.Attribute) and value.attr == "shape"
        grid = isinstance(value, ast.Call) and getattr(value.func, "attr", None) in ("grid", "gridsize")
        # `n, m = x.shape` and `i, j = cuda.grid(2)` give indices; any other tuple that is unpacked may hold anything.
        for part in target.elts:
            if isinstance(part, ast.Name):
                if shape or grid:
                    bound.setdefault(part.id, [])
                else:
                    never.add(part.id)


def _bind_turns(target: ast.expr, iterable: ast.expr, bound: dict[str, list[ast.expr]], never: set[str]) -> None:
    """Note what a loop gives the names in its `target`."""
    match target, iterable:
        # A counter of range is an index whatever range is given: it stops at an int64.
        case ast.Name(name), ast.Call(ast.Name("range")):
            bound.setdefault(name, [])
        case ast.Tuple([ast.Name(name), entry]), ast.Call(ast.Name("enumerate"), [sequence, *_]):
            bound.setdefault(name, [])
            _bind_turns(entry, sequence, bound, never)
        case ast.Tuple(targets), ast.Call(ast.Name("zip"), parts) if len(targets) == len(parts):
            for one, part in zip(targets, parts, strict=True):
                _bind_turns(one, part, bound, never)
        case _, ast.Tuple(entries):
            for entry in entries:
                _bind(target, entry, bound, never)
        case _:  # elements of anything else may be of any type
            never.update(_names_in(target))


def _names_in(target: ast.expr) -> Iterator[str]:
    return (part.id for part in ast.walk(target) if isinstance(part, ast.Name))


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Walk through the nodes of `function`, but not into functions inside it."""
    for child in ast.iter_child_nodes(function):
        yield child
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            yield from _own_nodes(child)


def boolean_names(function: ast.AST) -> set[str]:
    """Return the names of the variables of `function` that are at some place the result of a comparison."""
    return {
        target.id
        for node in _own_nodes(function)
        if isinstance(node, ast.Assign) and is_boolean(node.value, set())
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def is_boolean(node: ast.expr, names: set[str]) -> bool:
    """Return whether `node` is, or may be, a comparison or made of some."""
    match node:
        case ast.Compare() | ast.UnaryOp(ast.Not()) | ast.Constant(bool()):
            return True
        case ast.IfExp(_, chosen, other):
            return is_boolean(chosen, names) or is_boolean(other, names)
        case ast.BoolOp(_, values):
            return any(is_boolean(value, names) for value in values)
        case ast.BinOp(left, ast.BitAnd() | ast.BitOr() | ast.BitXor(), right):
            return is_boolean(left, names) and is_boolean(right, names)
        case ast.Name(name):
            return name in names
        case ast.Call(ast.Name("bool" | "boolean" | "bool_") | ast.Attribute(_, "boolean" | "bool_")):
            return True
    return False
