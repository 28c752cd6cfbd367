"""Find the indices among a kernel's variables: integers that stay Python's, because they are fast and cannot overflow.

`operators.py` gives every other integer its 64 bits. An index is made of thread and block indices, extents, loop
counters of `range` and literals, by operators that do not feed a variable back into itself, except to shrink it as in
`half //= 2`.
"""

import ast
from collections.abc import Iterator

AXES = ("threadIdx", "blockIdx", "blockDim", "gridDim")
COUNTS = ("size", "ndim", "laneid", "warpsize")
# A power or a shift of indices may leave 64 bits within one operation, so its result is no index.
GROWING = (ast.Pow, ast.Div, ast.LShift, ast.MatMult)
# Operators that may feed a variable back into itself: none of them makes it larger.
SHRINKING = (ast.FloorDiv, ast.RShift, ast.Mod, ast.BitAnd)


def is_index(node: ast.expr, names: set[str]) -> bool:
    """Return whether `node` is an index, given the names of those variables that are."""
    match node:
        case ast.Constant(value):
            # Two literals below 2**62 add up to less than 2**63. `type` and not isinstance: True is an int, too.
            return type(value) is int and value < 1 << 62
        case ast.Name(name):
            return name in names
        case ast.BinOp(left, operation, right):
            return not isinstance(operation, GROWING) and is_index(left, names) and is_index(right, names)
        case ast.Attribute(value, "x" | "y" | "z"):
            # `cuda.threadIdx.x`, and `threadIdx.x` after `from numba.cuda import threadIdx`.
            return (value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", "")) in AXES
        case ast.Attribute(_, name):
            return name in COUNTS
        # The extent of an array fits into memory, so it is far below 2**62.
        case ast.Subscript(ast.Attribute(_, "shape")):
            return True
        case ast.Call(ast.Attribute(_, "grid" | "gridsize")):
            return True
        case ast.Call(ast.Name("len")):
            return True
        case ast.Call(ast.Name("min" | "max"), arguments):
            return all(is_index(argument, names) for argument in arguments)
    return False


def index_names(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> set[str]:
    """Return the names of the variables of `function` that are never anything but an index."""
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
            # A counter of range is an index whatever range is given: it stops at an int64.
            case ast.For(ast.Name(name), ast.Call(ast.Name("range"))):
                bound.setdefault(name, [])
            case ast.Global(names) | ast.Nonlocal(names):
                never.update(names)
            case ast.For(target) | ast.comprehension(target) | ast.NamedExpr(target) | ast.AnnAssign(target):
                # Elements of anything else that is iterated over may be of any type.
                never.update(part.id for part in ast.walk(target) if isinstance(part, ast.Name))
    found: set[str] = set()
    while True:  # from nothing upwards, so that a variable made of itself is never found
        more = {
            name
            for name, values in bound.items()
            if name not in never | found and all(is_index(value, found) for value in values)
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
