"""Run a function's statements for the lanes of a frame: branches, loops, assignments.

Each statement of the syntax tree becomes a Python function of a frame once, when the kernel is first launched
(`compiled`). The tree is the one that the scheduler's threads run (language/operators.py), so literals and operators
mean the same here.
"""

import ast
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from normlab.sim.language.operators import PREFIX
from normlab.sim.vectorised import expressions
from normlab.sim.vectorised.expressions import PYTHON_OPERATORS, Expression, refusing
from normlab.sim.vectorised.frames import BREAK, CONTINUE, RETURN, Exit, Frame, value_of
from normlab.sim.vectorised.memory import Record, length_of
from normlab.sim.vectorised.refusal import NotVectorisedError
from normlab.sim.vectorised.values import HOLDERS, Mixed, Vector, varies

Statement = Callable[[Frame], None]
SPIN = 2000  # turns after which a loop is asked whether anything changes in it


def run(statements: Sequence[tuple[int, Statement]], frame: Frame) -> None:
    """Run statements one after another, each for the lanes that have not left before it."""
    for position, (line, statement) in enumerate(statements):
        try:
            statement(frame)
        except NotVectorisedError as refusal:
            if refusal.line is None:  # else a statement inside this one has named its line
                refusal.line = line
            raise
        except BaseException as error:
            if not isinstance(error, Exception):  # an interruption, whose traceback has only the engine's own lines
                vars(error).setdefault("kernel_lines", []).append((frame.call.file, line))
            raise
        # After a statement by which lanes leave, the rest of the block runs once, for the lanes that stay, in a child.
        if frame.left is None:
            continue
        rest = statements[position + 1 :]
        stay = frame.staying() if rest else ()
        if len(stay):
            child = frame.child(stay)
            run(rest, child)
            frame.absorb([child.exit(left=child.left)])
        return


def compiled(nodes: list[ast.stmt]) -> list[tuple[int, Statement]]:
    """Return the statements of a body, ready to run."""
    made = []
    for node in nodes:
        builder = BUILDERS.get(type(node))
        if isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            continue  # nothing, or a docstring
        statement = builder(node) if builder else refusing(f"of a statement {type(node).__name__.lower()!r}")
        made.append((node.lineno, statement))
    return made


def _assignment(node: ast.Assign) -> Statement:
    value = expressions.compiled(node.value)
    targets = [_target(target) for target in node.targets]
    if len(targets) == 1:  # not `a = b = …`
        (store,) = targets
        return lambda frame: store(frame, value(frame))

    def assign(frame: Frame) -> None:
        found = value(frame)
        for store in targets:
            store(frame, found)

    return assign


def _target(node: ast.expr) -> Callable[[Frame, Any], None]:
    """Return what stores a value into the target of an assignment."""
    match node:
        case ast.Name(name):
            return lambda frame, value: frame.assign(name, value)
        case ast.Tuple(elts=parts) if not any(isinstance(part, ast.Starred) for part in parts):
            stores = [_target(part) for part in parts]

            def unpack(frame: Frame, value: Any) -> None:
                if type(value) is Mixed or not isinstance(value, tuple) or len(value) != len(stores):
                    raise NotVectorisedError("something other than a tuple of that length is unpacked")
                for store, part in zip(stores, value, strict=True):
                    store(frame, part)

            return unpack
        case ast.Subscript(value=base, slice=index):
            array, key = expressions.compiled(base), expressions.compiled(index)

            def store(frame: Frame, value: Any) -> None:
                target, place = array(frame), key(frame)
                frame.call.at = node
                expressions.store_item(frame, target, place, value)

            return store
        case ast.Attribute(value=base, attr=name):
            record = expressions.compiled(base)

            def set_field(frame: Frame, value: Any) -> None:
                expressions.store_item(frame, _record(record(frame)), name, value)

            return set_field
    return lambda frame, value: refusing(f"of an assignment to {ast.unparse(node)}")(frame)


def _annotated(node: ast.AnnAssign) -> Statement:
    if node.value is None:
        return lambda frame: None  # `x: int` alone assigns nothing
    value, store = expressions.compiled(node.value), _target(node.target)
    return lambda frame: store(frame, value(frame))


def _augmented(node: ast.AugAssign) -> Statement:
    operation, value = PYTHON_OPERATORS[type(node.op)], expressions.compiled(node.value)
    if isinstance(node.target, ast.Name):
        name = node.target.id

        def update(frame: Frame) -> None:
            frame.assign(name, expressions.operate(operation, value_of(frame, name), value(frame), frame))

        return update
    if isinstance(node.target, ast.Subscript):
        array, key = expressions.compiled(node.target.value), expressions.compiled(node.target.slice)
        return lambda frame: _update_item(frame, node.target, array(frame), key(frame), operation, value)
    if isinstance(node.target, ast.Attribute):
        base, field = expressions.compiled(node.target.value), node.target.attr
        return lambda frame: _update_item(frame, node.target, _record(base(frame)), field, operation, value)
    return refusing(f"of an assignment to {ast.unparse(node.target)}")


def _record(value: Any) -> Record:
    if type(value) is not Record:
        raise NotVectorisedError("of an assignment to an attribute of something other than a record")
    return value


def _update_item(frame: Frame, node: ast.expr, array: Any, key: Any, operation: Callable, value: Expression) -> None:
    frame.call.at = node
    old = expressions.load_item(frame, array, key)
    new = expressions.operate(operation, old, value(frame), frame)
    frame.call.at = node  # the value may have set it to its own access
    expressions.store_item(frame, array, key, new)


def _expression(node: ast.Expr) -> Statement:
    # `a[i] /= b` has become a call of a function that divides and stores (language/operators.py).
    match node.value:
        case ast.Call(ast.Name(name), [ast.NamedExpr(_, base), ast.NamedExpr(_, index), _, operation, value]) if (
            name == f"{PREFIX}item"
        ):
            array, key, right = (expressions.compiled(part) for part in (base, index, value))
            function = expressions.compiled(operation)
            update = node.value
            return lambda frame: _update_item(frame, update, array(frame), key(frame), function(frame), right)
        case ast.Call():  # as a statement: an atomic's old element is not asked for
            call = expressions.compiled_call(node.value, used=False)
            return _dropping(call)
    return _dropping(expressions.compiled(node.value))


def _dropping(value: Expression) -> Statement:
    def evaluate(frame: Frame) -> None:
        value(frame)

    return evaluate


def _branch(node: ast.If) -> Statement:
    test, body, otherwise = expressions.compiled_test(node.test), compiled(node.body), compiled(node.orelse)

    def branch(frame: Frame) -> None:
        condition = test(frame)
        if not isinstance(condition, np.ndarray):
            run(body if condition else otherwise, frame)
            return
        yes = np.flatnonzero(condition)
        if len(yes) in (0, frame.width):  # it varies, but no lane goes the other way
            run(body if len(yes) else otherwise, frame)
            return
        exits = []
        for statements, places in ((body, yes), (otherwise, None)):  # None: looked for if there is an else
            if statements:
                child = frame.child(np.flatnonzero(~condition) if places is None else places)
                run(statements, child)
                exits.append(child.exit(left=child.left))
        frame.absorb(exits)

    return branch


def _ended(frame: Frame, exits: list[Exit]) -> Frame | None:
    """Return the frame of the lanes that take another turn after the body of a loop; None if there are none.

    Those that have left the loop are put into `exits`.
    """
    if frame.left is None:
        return frame
    left, frame.left = frame.left, None  # what `continue` has noted ends with the turn
    gone = np.flatnonzero(left >= BREAK)
    if not len(gone):
        return frame
    # After the loop, lanes that broke out go on with the others; those that returned stay away.
    how = np.where(left[gone] == RETURN, left[gone], 0).astype(np.int8)
    exits.append(frame.exit(gone, how if how.any() else None))
    stay = np.flatnonzero(left < BREAK)
    return frame.shrunk(stay) if len(stay) else None


def _divided(frame: Frame, condition: Any, exits: list[Exit]) -> Frame | None:
    """Return the frame of the lanes in which a loop's condition holds; the others are put into `exits`."""
    if not isinstance(condition, np.ndarray):
        if condition:
            return frame
        exits.append(frame.exit())
        return None
    stay = np.flatnonzero(condition)
    if len(stay) == frame.width:
        return frame
    exits.append(frame.exit(np.flatnonzero(~condition)))
    return frame.shrunk(stay) if len(stay) else None


def _ending(outer: Frame, ended: list[Exit], broken: list[Exit], otherwise: list) -> None:
    """Let lanes come back from a loop: those that it has `ended` for, by way of its else, and those that left it."""
    if otherwise and ended:
        whole = len(ended) == 1 and ended[0].places is None
        places = None if whole else np.sort(np.concatenate([one.places for one in ended]))
        outer.absorb(broken + ended)  # the else clause reads what the loop has assigned
        child = outer.child(places)
        run(otherwise, child)
        ended, broken = [child.exit(left=child.left)], []  # the other lanes are back already
    outer.absorb(broken + ended)


def _while(node: ast.While) -> Statement:
    test, body, otherwise = expressions.compiled_test(node.test), compiled(node.body), compiled(node.orelse)

    def loop(outer: Frame) -> None:
        ended: list[Exit] = []  # lanes for which the condition is false: these run the else clause
        exits: list[Exit] = []  # lanes that leave by `break` or `return`: these do not
        frame: Frame | None = outer.child(None)  # replaced by a narrower one when lanes leave
        turns, before = 0, None  # `before`: the loop's variables SPIN turns ago
        while frame is not None:
            frame = _divided(frame, test(frame), ended)
            if frame is not None:
                frame.lanes.machine.turn(frame.width)
                run(body, frame)
                frame = _ended(frame, exits)
            turns += 1
            if turns % SPIN == 0 and frame is not None:
                before = _progress(frame, before)
        _ending(outer, ended, exits, otherwise)

    return loop


def _progress(frame: Frame, before: Any) -> Any:
    """Return the variables of a loop; raises NotVectorisedError if they are those of `before`."""
    # Lanes that wait for a store of other lanes would wait for ever: the other lanes wait at the end of the loop.
    now = {name: frame.variables[name] for name in frame.assigned}
    if before is not None and before.keys() == now.keys() and all(_unchanged(before[name], now[name]) for name in now):
        raise NotVectorisedError("a loop waits for something that other threads do")
    return now


def _unchanged(one: Any, other: Any) -> bool:
    if type(one) is Vector and type(other) is Vector:
        return one.kind is other.kind and one.data.tobytes() == other.data.tobytes()
    return one is other or (not varies(one) and not varies(other) and type(one) is type(other) and one == other)


def _for(node: ast.For) -> Statement:
    store, body, otherwise = _target(node.target), compiled(node.body), compiled(node.orelse)
    match node.iter:
        case ast.Call(func=ast.Name("range"), args=arguments, keywords=[]):
            parts = [expressions.compiled(part) for part in arguments]
        case _:
            parts = []
            sequence = expressions.compiled(node.iter)

    def loop(outer: Frame) -> None:
        if parts:
            bounds = [part(outer) for part in parts]
            if any(varies(bound) for bound in bounds):
                _varying_range(outer, bounds, store, body, otherwise)
                return
            items: Any = range(*map(operator.index, bounds))
        else:
            items = sequence(outer)  # an array, a tuple, `zip` or `enumerate`
        ended: list[Exit] = []
        exits: list[Exit] = []
        frame: Frame | None = outer.child(None)
        # A variable like any other, because lanes leave the loop and the numbers of a tuple then lie closer together.
        frame.variables[".items"] = items  # type: ignore[union-attr]
        for turn in range(length_of(items)):
            frame.lanes.machine.turn(frame.width)  # type: ignore[union-attr]
            frame.call.at = node.iter  # type: ignore[union-attr]
            store(frame, expressions.entry(frame, frame.variables[".items"], turn))  # type: ignore[arg-type, union-attr]
            run(body, frame)  # type: ignore[arg-type]
            frame = _ended(frame, exits)  # type: ignore[arg-type]
            if frame is None:
                break
        else:
            ended.append(frame.exit())  # type: ignore[union-attr]
        _ending(outer, ended, exits, otherwise)

    return loop


def _varying_range(outer: Frame, bounds: list, store: Callable, body: list, otherwise: list) -> None:
    """Run a loop over ranges that differ between the lanes: turn `k` has the k-th number of each."""
    bounds = [0, bounds[0], 1] if len(bounds) == 1 else [*bounds, 1] if len(bounds) == 2 else bounds
    start, stop, step = (_numbers(bound, outer.width) for bound in bounds)
    if not step.all():
        raise NotVectorisedError("range has a step of 0")
    # Divided and rounded up, for steps of both signs. Lanes of the other sign divide by 1, and the result is dropped.
    turns = np.maximum(0, np.where(step > 0, -((start - stop) // np.where(step > 0, step, 1)), 0))
    turns = np.maximum(turns, np.where(step < 0, -((stop - start) // np.where(step < 0, -step, 1)), 0))
    # The last number is start + (turns - 1) * step, and lies between start and stop.
    low, high = int(min(start.min(), stop.min())), int(max(start.max(), stop.max()))
    ended: list[Exit] = []
    exits: list[Exit] = []
    frame: Frame | None = outer.child(None)
    # As variables these shrink with the frame. No name of a kernel has a dot.
    state = {"start": Vector(int, start), "step": Vector(int, step), "turns": Vector(int, turns)}
    frame.variables |= {f".{name}": value for name, value in state.items()}  # type: ignore[union-attr]
    turn = 0
    while frame is not None:
        left = frame.variables[".turns"]  # a scalar once a single lane is left
        frame = _divided(frame, left.data > turn if type(left) is Vector else left > turn, ended)
        if frame is None:
            break
        frame.lanes.machine.turn(frame.width)
        first, stride = frame.variables[".start"], frame.variables[".step"]
        if type(first) is Vector:
            store(frame, Vector(int, first.data + turn * stride.data, low, high))
        else:
            store(frame, first + turn * stride)
        run(body, frame)
        frame = _ended(frame, exits)
        turn += 1
    _ending(outer, ended, exits, otherwise)


def _numbers(value: Any, width: int) -> np.ndarray:
    if type(value) is Vector and HOLDERS[value.kind].kind in "iu" and value.data.dtype != np.uint64:
        return value.data.astype(np.int64, copy=False)
    if type(value) in (Vector, Mixed):
        raise NotVectorisedError("range gets something other than ints")
    return np.full(width, operator.index(value), np.int64)


def _return(node: ast.Return) -> Statement:
    value = expressions.compiled(node.value) if node.value is not None else lambda frame: None

    def leave(frame: Frame) -> None:
        # The call keeps the results until all lanes have come (running.invoke).
        frame.call.returns(frame.lanes, value(frame))
        frame.leave(RETURN)

    return leave


def _definition(node: ast.FunctionDef) -> Statement:
    return lambda frame: frame.assign(node.name, frame.call.defined(node, node.name))


def _assertion(node: ast.Assert) -> Statement:
    test = expressions.compiled_test(node.test)

    def check(frame: Frame) -> None:
        if not np.all(test(frame)):  # the scheduler finds the thread, and raises
            raise NotVectorisedError("an assertion fails")

    return check


BUILDERS: dict[type, Callable[[Any], Statement]] = {
    ast.Assign: _assignment,
    ast.AnnAssign: _annotated,
    ast.AugAssign: _augmented,
    ast.Expr: _expression,
    ast.If: _branch,
    ast.While: _while,
    ast.For: _for,
    ast.Return: _return,
    ast.Assert: _assertion,
    ast.FunctionDef: _definition,
    ast.Break: lambda node: lambda frame: frame.leave(BREAK),
    ast.Continue: lambda node: lambda frame: frame.leave(CONTINUE),
}
