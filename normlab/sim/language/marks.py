"""Mark the loads and stores in a kernel's source: `x[i]` becomes a call that names its place in the source.

Without marks an observer has to find the place in the interpreter's frames, which takes as long as everything else it
does for an access. It still does so for accesses that are not marked: slices, Numba's intrinsics, atomics.
"""

import ast
from itertools import count

LOAD, STORE = "_simulated_load", "_simulated_store"  # the kernel's globals for the observer's functions
ARRAY, KEY = "_simulated_array", "_simulated_key"  # variables for x and i, which x[i] += 1 evaluates once

_places = count(-1, -1)  # below 0, so that no mark has the number of an instruction


class AccessMarks(ast.NodeTransformer):
    """Makes x[i] load(x, i, place), and x[i] = value store(value, x, i, place), each with a number of its own."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Mark what is in the body: what a decorator or an annotation has in brackets is no access."""
        node.body = [self.visit(statement) for statement in node.body]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """Leave the annotation alone."""
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Turn x[i] into load(x, i, place)."""
        self.generic_visit(node)
        # `x[i]` as a target is visit_Assign's; with `del` and slices the observer finds the place in the frames.
        if not isinstance(node.ctx, ast.Load) or not _of_elements(node):
            return node
        return ast.copy_location(_call(LOAD, node.value, node.slice), node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """Turn x[i] = value into store(value, x, i, place)."""
        self.generic_visit(node)
        target = node.targets[0]
        # `x[i] = y[i] = 1` and `x[i], y[i] = …` are rare: they go through ObservedArray.__setitem__ without a mark.
        if len(node.targets) > 1 or not isinstance(target, ast.Subscript) or not _of_elements(target):
            return node
        # The value stands first among the arguments, because Python evaluates it before the array and the index.
        stored = ast.copy_location(_call(STORE, node.value, target.value, target.slice), target)
        return ast.copy_location(ast.Expr(stored), node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        """Turn x[i] += value into store(load(x, i, place) + value, x, i, place), with x and i evaluated once."""
        self.generic_visit(node)
        target = node.target
        if not isinstance(target, ast.Subscript) or not _of_elements(target):
            return node
        array, key = (
            # `(array := x)` and `(key := i)` inside the load, read again by the store after it: evaluated once, as `+=`
            # does.
            ast.NamedExpr(ast.Name(name, ast.Store()), part)
            for name, part in ((ARRAY, target.value), (KEY, target.slice))
        )
        loaded = ast.copy_location(_call(LOAD, array, key), target)
        changed = ast.copy_location(ast.BinOp(loaded, node.op, node.value), node)
        stored = _call(STORE, changed, ast.Name(ARRAY, ast.Load()), ast.Name(KEY, ast.Load()))
        return ast.copy_location(ast.Expr(ast.copy_location(stored, target)), node)


def _of_elements(node: ast.Subscript) -> bool:
    """Return whether `node` may be one element of an array: no slice, no x.shape[0]."""
    if isinstance(node.value, ast.Attribute) and node.value.attr in ("shape", "strides"):
        return False
    # An index that is itself a view cannot be told here; the load then finds a view at run time and logs nothing.
    return not any(isinstance(part, (ast.Slice, ast.Starred)) for part in ast.walk(node.slice))


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), [*arguments, ast.Constant(next(_places))], [])
