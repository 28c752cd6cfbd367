"""Compare a solution's source with the exercise's file: lines may be added only at the places marked for them.

An exercise's file marks each such place with a comment that begins with `# Your line`. All other lines are given: they
have to stay, in their order, and nothing may stand between them. So a kernel that calls the function under test stays
as it is. A student may add functions and constants of their own under names that have no meaning yet.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

MARK = "YOUR_LINES"  # stands for a marked place once the skeleton is parsed; no exercise has this name
_MARKS = re.compile(r"^( *)# Your line.*$", re.MULTILINE)


class Line(NamedTuple):
    """A line of code, formatted as `ast.unparse` does, and its number in the source."""

    text: str
    number: int


class Difference(NamedTuple):
    """A given line that is gone ("removed") or an added line that stands at no marked place ("outside")."""

    kind: str
    text: str
    line: int | None


def differs(tree: ast.Module, skeleton: str) -> Difference | None:
    """Return the first difference between a solution and its exercise other than lines at marked places, or None."""
    if gone := lacks(tree, skeleton):
        return gone
    own = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in marked(skeleton).body:
        if isinstance(node, ast.FunctionDef):
            lines = list(code_lines([own[node.name]]))
            if difference := _between(lines, [line.text for line in code_lines([node])]):
                return difference
    return None


def lacks(tree: ast.Module, skeleton: str) -> Difference | None:
    """Return the first import, constant or function of the exercise that a solution has no more, or None."""
    own = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    statements = {ast.unparse(part) for node in tree.body for part in separate(node)}
    for node in ast.parse(skeleton).body:
        if isinstance(node, ast.FunctionDef):
            if node.name not in own:
                return _removed(f"def {node.name}({ast.unparse(node.args)}):")
        elif not (is_text(node) or is_main(node)):
            for part in separate(node):
                if ast.unparse(part) not in statements:
                    return _removed(ast.unparse(part))
    return None


def separate(node: ast.stmt) -> list[ast.stmt]:
    """Return an import as imports of one name each, so that their order does not matter; else the statement itself."""
    match node:
        case ast.Import(names=names):
            return [ast.Import([name]) for name in names]
        case ast.ImportFrom(module=module, names=names, level=level):
            return [ast.ImportFrom(module, [name], level) for name in names]
    return [node]


def marked(skeleton: str) -> ast.Module:
    """Return an exercise's file parsed, with the name MARK as a statement at each marked place."""
    return ast.parse(_MARKS.sub(rf"\1{MARK}", skeleton))


def added_lines(source: str, skeleton: str) -> int:
    """Return how many more lines of code `source` has than `skeleton`; comments and docstrings do not count."""
    new, old = (len(list(code_lines(ast.parse(text).body))) for text in (source, skeleton))
    return new - old


class Own(NamedTuple):
    """The lines that a student has added to one function of the exercise, first and last."""

    function: str
    first: int
    last: int


def own_lines(source: str, skeleton: str) -> list[Own]:
    """Return the added lines of each function that has a marked place, for a source that does not differ otherwise."""
    functions = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    found = []
    for node in marked(skeleton).body:
        if isinstance(node, ast.FunctionDef) and any(MARK in line.text for line in code_lines([node])):
            given = Counter(line.text for line in code_lines([node]))
            lines = []
            for line in code_lines([functions[node.name]]):
                given[line.text] -= 1
                if given[line.text] < 0:
                    lines.append(line.number)
            if lines:
                found.append(Own(node.name, min(lines), max(lines)))
    return found


def made_by(source: str, skeleton: str, line: int) -> Own | None:
    """Return the student's lines that made the value that a given line stores; None if the line is the student's own.

    They are in the function with a marked place that the line calls, or else in the only such function.
    """
    owned = own_lines(source, skeleton)
    if any(own.first <= line <= own.last for own in owned):
        return None
    called = {
        part.func.id
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.stmt) and node.lineno == line and not isinstance(node, ast.FunctionDef)
        for part in ast.walk(node)
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Name)
    }
    direct = [own for own in owned if own.function in called]
    return next(iter(direct or (owned if len(owned) == 1 else [])), None)


def is_apart(source: str, skeleton: str, line: int) -> bool:
    """Return whether a line is in a given kernel that neither has lines of the student's nor calls a function."""
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    (around,) = (node for node in functions if node.lineno <= line <= (node.end_lineno or node.lineno))
    used = {part.id for part in ast.walk(around) if isinstance(part, ast.Name)}
    owned = {own.function for own in own_lines(source, skeleton)}
    given = {node.name for node in ast.parse(skeleton).body if isinstance(node, ast.FunctionDef)}
    return around.name in given - owned and not owned & used


def made_at(source: str, own: Own, line: int) -> int:
    """Return the last of a student's lines that sets a name which a given line stores, or else the last line.

    If the given line stands in another function, which calls the student's, the last line is the one that returns.
    """
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    (function,) = (node for node in functions if node.name == own.function)
    statements = [node for node in ast.walk(function) if isinstance(node, ast.stmt)]
    used = {name for node in statements if node.lineno == line for name in _names(node, ast.Load)}
    sets = [
        node.lineno
        for node in statements
        if isinstance(node, ast.Assign | ast.AugAssign)
        and own.first <= node.lineno <= own.last
        and used.intersection(_names(node, ast.Store))
    ]
    return max(sets, default=own.last)


def _names(node: ast.stmt, context: type[ast.expr_context]) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, context)}


def storing_lines(source: str, array: str) -> list[int]:
    """Return the lines of a source that store into an element of `array`, or hand it to a function that may."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store()) if name == array:
                found.append(node.lineno)
            case ast.Call(args=[ast.Name(id=name), *_]) if name == array:
                found.append(node.lineno)
    return sorted(found)


def calling_lines(source: str, function: str) -> list[int]:
    """Return the lines of a source that call `function`, or if none does, all that call an imported function."""
    tree = ast.parse(source)
    imported = {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    calls = [
        (node.func.id, node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    own = {line for name, line in calls if name == function}
    numbers = {"float32", "float64"}  # imported, and no function of a stage
    return sorted(own or {line for name, line in calls if name in imported - numbers})


def loop_of(source: str, line: int) -> int:
    """Return the line of the outermost `while` around a line, or else `for`; or the line itself if there is no loop.

    Of a line in a function without a loop: that around the calls of the function.
    """
    tree = ast.parse(source)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    waiting, seen = [line], set[str]()
    while waiting:
        at = waiting.pop(0)
        function = next((one for one in functions if one.lineno <= at <= (one.end_lineno or at)), None)
        if function is None or function.name in seen:
            continue
        seen.add(function.name)
        for kind in (ast.While, ast.For):
            loops = [one for one in ast.walk(function) if isinstance(one, kind)]
            if around := [one.lineno for one in loops if one.lineno <= at <= (one.end_lineno or at)]:
                return min(around)
        waiting += [call.lineno for call in calls if ast.unparse(call.func) == function.name]
    return line


def code_lines(statements: list[ast.stmt], depth: int = 0) -> Iterator[Line]:
    """Yield the lines of code of statements, without comments, docstrings, `pass` and the `__main__` block."""
    indent = "    " * depth
    for node in statements:
        match node:
            case _ if is_text(node) or is_main(node) or isinstance(node, ast.Pass):
                continue
            case ast.FunctionDef():
                for decorator in node.decorator_list:
                    yield Line(f"{indent}@{ast.unparse(decorator)}", decorator.lineno)
                head = f"def {node.name}({ast.unparse(node.args)}):"
            case ast.For():
                head = f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}:"
            case ast.While():
                head = f"while {ast.unparse(node.test)}:"
            case ast.If():
                head = f"if {ast.unparse(node.test)}:"
            case _:
                yield Line(indent + ast.unparse(node), node.lineno)
                continue
        yield Line(indent + head, node.lineno)
        yield from code_lines(node.body, depth + 1)
        if otherwise := getattr(node, "orelse", []):
            yield Line(f"{indent}else:", otherwise[0].lineno)
            yield from code_lines(otherwise, depth + 1)


def _between(lines: list[Line], pattern: list[str]) -> Difference | None:
    """Return how a function's lines differ from the given ones, in which MARK stands for any number of lines.

    All ways to read the lines are followed at once: `places` are the numbers of given lines that may come next.
    """
    places = _next({0}, pattern)
    for line in lines:
        there = {place for place in places if place < len(pattern)}
        stays = {place for place in there if pattern[place].strip() == MARK}
        moves = {place + 1 for place in there if pattern[place] == line.text}
        if not stays | moves:
            return _first_of(lines, line, [text for text in pattern if text.strip() != MARK])
        places = _next(stays | moves, pattern)
    if len(pattern) in places:
        return None
    return _first_of(lines, None, [text for text in pattern if text.strip() != MARK])


def _next(places: set[int], pattern: list[str]) -> set[int]:
    """Add the places that lie after a MARK, at which no line need be added."""
    for place in sorted(places):
        while place < len(pattern) and pattern[place].strip() == MARK:
            place += 1
            places = places | {place}
    return places


def _first_of(lines: list[Line], wrong: Line | None, given: list[str]) -> Difference:
    """Return the difference to report: the first given line that is gone, else the line that stands at no place."""
    there = iter([line.text for line in lines])
    for text in given:
        if text not in there:  # `in` advances the iterator, so lines must come in the given order
            return _removed(text.strip())
    assert wrong is not None, "all given lines are there, so a line must be one too many"
    return Difference(
        "outside",
        f"{wrong.text.strip()!r} stands among the given lines: add yours only where the exercise says `# Your lines`",
        wrong.number,
    )


def _removed(text: str) -> Difference:
    return Difference(
        "removed", f"a line of the exercise is gone or changed: {text!r}; add lines, and leave the others", None
    )


def lines_above(node: ast.stmt) -> int:
    """Return the number of lines above a statement and its decorators."""
    return min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))]) - 1


def is_text(node: ast.stmt) -> bool:
    """Return whether a statement is a bare string, such as a docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def is_main(node: ast.stmt) -> bool:
    """Return whether a statement is `if __name__ == "__main__":`, which does not run when a solution is checked."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'" and not node.orelse
