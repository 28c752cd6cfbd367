"""Mark the statements of a kernel's source, so that an observer can follow a thread from one to the next.

Every statement gets a call of the kernel's global STEP before it: with the statement's number, which counts statements
in the order in which `StepMarks` visits them, the number of loops around it, and None. A loop calls STEP once per test
of its condition, the last one included; in place of None it gives the names of the variables that a `for` loop sets.
"""

import ast

STEP = "_simulated_step"


class StepMarks(ast.NodeTransformer):
    """Puts a call of STEP before every statement of every function, and into every test of a loop."""

    def __init__(self) -> None:
        """Start outside of any function."""
        self._number = self._depth = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Mark the statements of a function."""
        # A function inside a loop's body runs when it is called, so its own loops count from 0.
        outer, self._depth = self._depth, 0
        node.body = self._marked(node.body)
        self._depth = outer
        return node

    def visit_While(self, node: ast.While) -> ast.AST:
        """Turn `while test` into `while STEP(…) and test`, as STEP returns True."""
        mark = self._mark(node, ())
        # Inside the test, because a mark in the body would miss the last test, with which the loop ends.
        node.test = ast.copy_location(ast.BoolOp(ast.And(), [mark, self.visit(node.test)]), node.test)
        node.body = self._inside(node.body)
        node.orelse = self._marked(node.orelse)
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        """Put a call at the beginning of each turn, and one more where the loop finds that there is no further turn."""
        mark = self._mark(node, tuple(part.id for part in ast.walk(node.target) if isinstance(part, ast.Name)))
        node.body = [ast.copy_location(ast.Expr(mark), node), *self._inside(node.body)]
        # Python runs `else` where the iterator has no further element, which is the last test, and not after a break.
        node.orelse = [ast.copy_location(ast.Expr(mark), node), *self._marked(node.orelse)]
        return node

    def _inside(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Return the marked body of a loop."""
        self._depth += 1
        body = self._marked(body)
        self._depth -= 1
        return body

    def _marked(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Return statements with their marks, and those inside of them, too."""
        found: list[ast.stmt] = []
        for statement in body:
            if isinstance(statement, (ast.For, ast.While)):  # which have their marks inside
                found.append(self.visit(statement))
                continue
            if not _says_nothing(statement):
                found.append(ast.copy_location(ast.Expr(self._mark(statement)), statement))
            # Its body is marked by `visit`, with a depth of its own.
            if isinstance(statement, ast.FunctionDef):
                found.append(self.visit(statement))
                continue
            # Statements lie in the lists of if, with and try, but also in those of each `except` and each `case`. An
            # attribute of the same name that is no list is an expression's, as the body of a lambda.
            for part in (statement, *getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
                for name in ("body", "orelse", "finalbody"):
                    if isinstance(inner := getattr(part, name, None), list):
                        setattr(part, name, self._marked(inner))
            found.append(statement)
        return found

    def _mark(self, node: ast.stmt, sets: tuple[str, ...] | None = None) -> ast.expr:
        self._number += 1
        names = ast.Constant(None) if sets is None else ast.Tuple([ast.Constant(name) for name in sets], ast.Load())
        arguments: list[ast.expr] = [ast.Constant(self._number), ast.Constant(self._depth), names]
        return ast.copy_location(ast.Call(ast.Name(STEP, ast.Load()), arguments, []), node)


def _says_nothing(statement: ast.stmt) -> bool:
    """Return whether a statement is a docstring or a declaration, at which no thread does anything."""
    docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return docstring or isinstance(statement, (ast.Global, ast.Nonlocal))
