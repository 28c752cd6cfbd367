"""Tell fields from the attributes of arrays and of `cuda` that are indices, such as `size`.

The syntax does not: `p[i].size` is a float32 if the records have such a field, `c.size` may be a named tuple's or a
module's float. So where a launch has such a field, every attribute of that name is a call in the rewritten kernel, and
by the rules of `indices.py` a call is no index.
"""

import ast
from types import ModuleType
from typing import Any

import numpy as np

from normlab.sim.language.indices import COUNTS

AS_INT64 = "_simulated_int64s"  # among OPERATOR_GLOBALS (operators.py)
EXTENTS = frozenset((*COUNTS, "shape"))


def fields_of(value: Any) -> set[str]:
    """Return the names of all fields of the records that a value holds or describes, and of those inside of them.

    A named tuple has fields, too; of a module those floats count that have the name of an extent.
    """
    if isinstance(value, tuple):
        return set(getattr(value, "_fields", ())).union(*map(fields_of, value))
    if isinstance(value, ModuleType):
        return {name for name in EXTENTS if isinstance(vars(value).get(name), (float, np.floating))}
    dtype = value if isinstance(value, np.dtype) else getattr(value, "dtype", None)  # an array's, or a Numba type's
    if not isinstance(dtype, np.dtype):
        return set()
    fields: Any = dtype.base.fields or {}
    return set(fields).union(*(fields_of(field[0]) for field in fields.values()))


class FieldAttributes(ast.NodeTransformer):
    """Makes calls of the attributes that have the name of a field."""

    def __init__(self, names: frozenset[str]):
        """Make calls of the attributes with these names."""
        self._names = names

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Turn p[i].size into AS_INT64(p[i].size), which makes int64 of indices and leaves all other values alone."""
        self.generic_visit(node)
        if node.attr not in self._names or not isinstance(node.ctx, ast.Load):
            return node
        return ast.copy_location(ast.Call(ast.Name(AS_INT64, ast.Load()), [node], []), node)
