"""Compute a function's expressions for the lanes of a frame.

Each expression of the syntax tree becomes a Python function from a frame to a value (values.py) once. Where no operand
varies, Python computes the one scalar that all lanes share, with the operator of the scheduler's threads.
"""

import ast
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from normlab.sim.language.operators import typed_constant
from normlab.sim.vectorised import accesses, calls
from normlab.sim.vectorised.arithmetic import binary, by_alternatives, truth, unary
from normlab.sim.vectorised.frames import Frame, value_of
from normlab.sim.vectorised.memory import Array, Walk, length_of
from normlab.sim.vectorised.refusal import NotVectorisedError
from normlab.sim.vectorised.values import Mixed, Unbound, Vector, merge, take

Expression = Callable[[Frame], Any]
load_item, store_item = accesses.load_item, accesses.store_item

PYTHON_OPERATORS: dict[type, Callable] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
VARYING = (Vector, Mixed)


def refusing(what: str) -> Expression:
    """Return an expression, or a statement, that refuses the kernel when it is reached.

    what: the reason, in words that continue "the scheduler ran, because …".
    """

    def refuse(frame: Frame) -> Any:
        raise NotVectorisedError(what)

    return refuse


def compiled(node: Any) -> Expression:
    """Return the function that computes an expression of the syntax tree in a frame."""
    # What has no rule refuses when it is reached, and not now: the kernel's arguments may never lead there.
    builder = BUILDERS.get(type(node))
    return builder(node) if builder else refusing(f"of {type(node).__name__.lower()} {ast.unparse(node)!r}")


def operate(operation: Callable, a: Any, b: Any, frame: Frame) -> Any:
    """Return `operation(a, b)`, whether it varies or not."""
    if type(a) in VARYING or type(b) in VARYING:
        return binary(operation, a, b, frame.width)
    if type(a) is Array or type(b) is Array:
        raise NotVectorisedError("an operator meets a whole array")
    return operation(a, b)


def _constant(node: ast.Constant) -> Expression:
    # The number that the scheduler's code has here: np.float64 for a float, np.int64 for a marked integer.
    value = typed_constant(node.value)
    return lambda frame: value


def _name(node: ast.Name) -> Expression:
    name = node.id

    def read(frame: Frame) -> Any:
        found = frame.variables.get(name, Unbound)
        if type(found) is not Mixed and found is not Unbound:  # the usual case: every lane has assigned it
            return found
        # A local name is never an outer one, even if lanes have not assigned it.
        if name in frame.call.function.locals:
            return value_of(frame, name)
        return frame.call.outer(name)  # of the enclosing function, the module or the builtins

    return read


def _binary(node: ast.BinOp) -> Expression:
    left, right = compiled(node.left), compiled(node.right)
    operation = PYTHON_OPERATORS.get(type(node.op))
    if operation is None:
        return refusing(f"of an operator in {ast.unparse(node)!r}")
    if operation is operator.pow:  # of two literals: `language.operators` has replaced every other power by a call
        return lambda frame: left(frame) ** right(frame)
    return lambda frame: operate(operation, left(frame), right(frame), frame)


def _unary(node: ast.UnaryOp) -> Expression:
    operand = compiled(node.operand)
    # `not` asks for the truth of its operand, of whatever type, and so compiles it as a test.
    if isinstance(node.op, ast.Not):
        test = compiled_test(node.operand)

        def negate(frame: Frame) -> Any:
            found = test(frame)
            return Vector(bool, ~found) if isinstance(found, np.ndarray) else not found

        return negate
    operation = PYTHON_OPERATORS[type(node.op)]

    def compute(frame: Frame) -> Any:
        value = operand(frame)
        return unary(operation, value, frame.width) if type(value) in VARYING else operation(value)

    return compute


def _compare(node: ast.Compare) -> Expression:
    first, *others = [compiled(part) for part in (node.left, *node.comparators)]
    comparisons = [_comparison(one) for one in node.ops]
    if None in comparisons:
        return refusing(f"of the comparison {ast.unparse(node)!r}")
    # Nearly every comparison has two operands.
    if len(others) == 1:
        (other,), (comparison,) = others, comparisons
        return lambda frame: comparison(first(frame), other(frame), frame)  # type: ignore[misc]

    def chained(frame: Frame, left: Any, position: int) -> Any:
        """Return `left < b < c`: b is computed once, and c in the lanes in which `left < b`."""
        right = others[position](frame)
        found = comparisons[position](left, right, frame)  # type: ignore[misc]
        if position == len(others) - 1:
            return found
        holds = truth(found, frame.width)
        if not isinstance(holds, np.ndarray):
            return chained(frame, right, position + 1) if holds else found
        # Where the first comparison is false it is the result, and c is not computed: it may not be computable there.
        undecided = np.flatnonzero(holds)
        if not len(undecided):
            return found
        if len(undecided) == frame.width:  # no lane is decided, so this frame serves
            return chained(frame, right, position + 1)
        rest = chained(frame.child(undecided), take(right, undecided), position + 1)
        return merge(frame.width, [(undecided, rest)], found, complete=False)

    return lambda frame: chained(frame, first(frame), 0)


def _comparison(operation: ast.cmpop) -> Callable[[Any, Any, Frame], Any] | None:
    """Return the function that compares two values in the lanes of a frame; None if there is no rule."""
    if isinstance(operation, (ast.Is, ast.IsNot)):
        return _identity(isinstance(operation, ast.Is))
    if isinstance(operation, (ast.In, ast.NotIn)):
        return _membership(isinstance(operation, ast.In))
    function = PYTHON_OPERATORS.get(type(operation))
    return None if function is None else lambda a, b, frame: operate(function, a, b, frame)


def _membership(positive: bool) -> Callable[[Any, Any, Frame], Any]:
    """Return the function that computes `a in (b, c, …)`; positive: False for `not in`."""

    def compare(a: Any, b: Any, frame: Frame) -> Any:
        if not isinstance(b, tuple):
            raise NotVectorisedError(f"of a search in a {type(b).__name__}")
        found: Any = False
        for one in b:
            # All entries are compared: to stop at the first equal one would need a frame for the other lanes.
            found = found | truth(operate(operator.eq, a, one, frame), frame.width)
        return Vector(bool, found == positive) if isinstance(found, np.ndarray) else bool(found) is positive

    return compare


def _identity(positive: bool) -> Callable[[Any, Any, Frame], Any]:
    """Return the function that computes `a is b`, which kernels ask of None; positive: False for `is not`."""

    def compare(a: Any, b: Any, frame: Frame) -> Any:
        if type(a) is Mixed or type(b) is Mixed:  # None in some lanes, as after `found = None` before a branch
            return by_alternatives(lambda a, b, width: (a is b) is positive, (a, b), frame.width)
        if a is not None and b is not None:
            raise NotVectorisedError("identity of something other than None is asked")
        # One of both is None. Numbers that vary are never None, so the answer is the same in all lanes.
        return (a is b) is positive

    return compare


def _boolean(node: ast.BoolOp) -> Expression:
    """Return `a and b`, or `a or b`: one of the two operands. b is computed in the lanes that a leaves undecided."""
    first, *rest = node.values
    one = compiled(first)
    # `a and b and c` is `a and (b and c)`.
    other = compiled(rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest))
    wants_true = isinstance(node.op, ast.And)

    def compute(frame: Frame) -> Any:
        a = one(frame)
        decided = truth(a, frame.width)
        if not isinstance(decided, np.ndarray):
            return other(frame) if bool(decided) is wants_true else a
        undecided = np.flatnonzero(decided if wants_true else ~decided)
        if not len(undecided):
            return a
        if len(undecided) == frame.width:  # no lane is decided, so this frame serves
            return other(frame)
        b = other(frame.child(undecided))
        # Python gives an operand itself and no bool: the types may differ between lanes.
        return merge(frame.width, [(undecided, b)], a, complete=False)

    return compute


# Only calls, subscripts and attributes access memory or may raise. Divisions, powers and most shifts are calls by now
# (language/operators.py).
HARMLESS = (
    ast.Name,
    ast.Constant,
    ast.Compare,
    ast.BinOp,
    ast.BoolOp,
    ast.UnaryOp,
    ast.cmpop,
    ast.operator,
    ast.boolop,
    ast.unaryop,
    ast.expr_context,
)


def _harmless(node: ast.expr) -> bool:
    """Return True if an expression may be computed in lanes that do not need it: it reads no memory, nor raises."""
    return all(isinstance(part, HARMLESS) for part in ast.walk(node))


def compiled_test(node: ast.expr) -> Expression:
    """Return an expression whose truth alone matters: a bool, or an array of bools where it varies."""
    if isinstance(node, ast.Compare) and len(node.ops) > 1 and _harmless(node):
        pairs = zip([node.left, *node.comparators], node.ops, node.comparators, strict=False)
        # No operand has an effect, so `a < b < c` is `a < b and b < c`.
        node = ast.BoolOp(ast.And(), [ast.Compare(left, [one], [right]) for left, one, right in pairs])
    # To compute b in all lanes takes less time than to make a frame for the lanes that need it.
    if isinstance(node, ast.BoolOp) and all(map(_harmless, node.values[1:])):
        parts = [compiled_test(part) for part in node.values]
        function = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
        wants_true = isinstance(node.op, ast.And)

        def combine(frame: Frame) -> Any:
            result: Any = wants_true
            for part in parts:
                # An operand that is the same in all lanes has decided: the rest is not computed, as in Python.
                if not isinstance(result, np.ndarray) and result is not wants_true:
                    return result
                found = part(frame)
                # `True and x` is x, and `False or x` is x.
                result = found if result is wants_true else function(result, found)
            return result if isinstance(result, np.ndarray) else bool(result)

        return combine
    value = compiled(node)
    return lambda frame: truth(value(frame), frame.width)


def _conditional(node: ast.IfExp) -> Expression:
    test, body, otherwise = compiled_test(node.test), compiled(node.body), compiled(node.orelse)

    def choose(frame: Frame) -> Any:
        condition = test(frame)
        if not isinstance(condition, np.ndarray):
            return body(frame) if condition else otherwise(frame)
        yes, no = np.flatnonzero(condition), np.flatnonzero(~condition)
        if not len(yes) or not len(no):  # it varies, but all lanes choose one side
            return (body if len(yes) else otherwise)(frame)
        # Each side in its own lanes alone: `x[i] if i < n else 0` must not load outside the array.
        pieces = [(yes, body(frame.child(yes))), (no, otherwise(frame.child(no)))]
        return merge(frame.width, pieces, None)

    return choose


def _tuple(node: ast.Tuple) -> Expression:
    parts = [compiled(part) for part in node.elts]
    return lambda frame: tuple([part(frame) for part in parts])


def _subscript(node: ast.Subscript) -> Expression:
    value, index = compiled(node.value), compiled(node.slice)

    def load(frame: Frame) -> Any:
        array, key = value(frame), index(frame)
        # After the operands, which may be accesses themselves: an observer reads in `at` which access this is.
        frame.call.at = node
        return load_item(frame, array, key)

    return load


def _lambda(node: ast.Lambda) -> Expression:
    return lambda frame: frame.call.defined(node, "<lambda>")


def entry(frame: Frame, items: Any, turn: int) -> Any:
    """Return what a loop's variable is in a turn; of `zip` and `enumerate` (`Walk`) a tuple."""
    if type(items) is Walk:
        # A part may itself be a `zip` or an `enumerate`.
        return tuple(entry(frame, part, turn) for part in items.parts)
    return load_item(frame, items, turn)


def _comprehension(node: ast.ListComp) -> Expression:
    """Return `[… for a in b]` as a tuple: kernels have no lists, and only what wraps a function makes one."""
    walk, *others = node.generators
    # The target is one name, or a tuple of names as in `for a, b in zip(x, y)`.
    names = [part.id for part in getattr(walk.target, "elts", [walk.target]) if isinstance(part, ast.Name)]
    sequence, element = compiled(walk.iter), compiled(node.elt)
    if others or walk.ifs or not names:
        return refusing(f"of {ast.unparse(node)!r}")

    def collect(frame: Frame) -> Any:
        # The variables of a comprehension are its own: a child has them, and does not give them back.
        items, inner, made = sequence(frame), frame.child(None), []
        for turn in range(length_of(items)):
            found = entry(inner, items, turn)
            for name, value in zip(names, found if len(names) > 1 else (found,), strict=True):
                inner.assign(name, value)
            made.append(element(inner))
        return tuple(made)

    return collect


def _slice(node: ast.Slice) -> Expression:
    parts = [
        compiled(part) if part is not None else (lambda frame: None) for part in (node.lower, node.upper, node.step)
    ]
    return lambda frame: slice(*[part(frame) for part in parts])


def _attribute(node: ast.Attribute) -> Expression:
    value, name = compiled(node.value), node.attr
    return lambda frame: calls.attribute(frame, value(frame), name)


def compiled_call(node: ast.Call, used: bool = True) -> Expression:
    """Return a call. used: False if the call is a statement, whose result is dropped."""
    if any(part.arg is None for part in node.keywords):
        return refusing(f"of the starred arguments in {ast.unparse(node)!r}")
    function = compiled(node.func)
    arguments = [compiled(part.value if isinstance(part, ast.Starred) else part) for part in node.args]
    starred = [isinstance(part, ast.Starred) for part in node.args]
    keywords = {str(part.arg): compiled(part.value) for part in node.keywords}
    # Most calls, without a list and a dict to fill.
    if not any(starred) and not keywords:
        return lambda frame: calls.call(
            calls.Site(frame, node, used), function(frame), [argument(frame) for argument in arguments], {}
        )

    def call(frame: Frame) -> Any:
        found = function(frame)
        given: list[Any] = []
        for argument, many in zip(arguments, starred, strict=True):
            value = argument(frame)
            if many and not isinstance(value, tuple):  # tuples of several lengths would be several calls
                raise NotVectorisedError("of a starred argument that is no tuple")
            given += value if many else (value,)
        named = {name: argument(frame) for name, argument in keywords.items()}
        return calls.call(calls.Site(frame, node, used), found, given, named)

    return call


# Not here: f-strings, lists, dicts, sets, `:=`. Numba's kernels have few of these, and the scheduler runs them.
BUILDERS: dict[type, Callable[[Any], Expression]] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.Compare: _compare,
    ast.BoolOp: _boolean,
    ast.IfExp: _conditional,
    ast.Tuple: _tuple,
    ast.Subscript: _subscript,
    ast.Slice: _slice,
    ast.Attribute: _attribute,
    ast.Call: compiled_call,
    ast.Lambda: _lambda,
    ast.ListComp: _comprehension,
}
