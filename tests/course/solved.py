"""Right solutions, whole files; wrong ones, made of an exercise's file and the functions that students get wrong; and,
in the same way, other right ones.

A file under wrong/ has functions of the exercise, to stand where the exercise's own have their place to write, and
what else belongs outside of functions. Its docstring begins with the kind of failure that it must meet with, and may
end with `Says:` and what the message has to tell.
"""

import ast
from dataclasses import dataclass
from pathlib import Path

from normlab.course import catalogue, given, reference

HERE = Path(__file__).parent
SOLUTIONS = sorted(reference.FOLDER.glob("*.py"))
OTHERS = sorted((HERE / "other").glob("*/*.py"))
WRONG = sorted((HERE / "wrong").glob("*/*.py"))


@dataclass(frozen=True)
class Wrong:
    """A wrong solution: its text, the kind of failure it must meet with, and words that the message must have."""

    number: str
    source: str
    kind: str
    says: str


def wrong(path: Path) -> Wrong:
    """Read a file under wrong/."""
    kind, _, reason = (ast.get_docstring(ast.parse(path.read_text())) or "").partition(":")
    return Wrong(path.parent.name[:2], completed(path), kind, reason.partition("Says:")[2].strip())


def completed(path: Path) -> str:
    """Return the exercise's file with the functions of a file under wrong/ or other/."""
    return written(path.parent.name[:2], path.read_text())


def written(number: str, text: str) -> str:
    """Return an exercise's file with the functions of `text`."""
    source = catalogue.skeleton(number)
    for node in ast.parse(text).body:
        if given.is_text(node):
            continue
        lines = text.splitlines()[: node.end_lineno]
        if isinstance(node, ast.FunctionDef) and f"def {node.name}(" in source:
            source = _with_body(source, node.name, lines[node.body[0].lineno - 1 :])
        else:
            decorators = getattr(node, "decorator_list", [])
            lines = lines[min([node.lineno, *(one.lineno for one in decorators)]) - 1 :]
            before, first, after = source.partition("\n\n\n@cuda.jit")
            source = before + "\n" + "\n".join(lines) + first + after
    return source


def _with_body(source: str, name: str, body: list[str]) -> str:
    """Put `body` behind the docstring of the function `name`."""
    (function,) = (n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name == name)
    lines = source.splitlines()
    ends = [n.lineno - 1 for n in ast.parse(source).body if n.lineno > function.lineno] + [len(lines) + 3]
    ends = [end - 1 if end <= len(lines) and lines[end - 1].startswith("@") else end for end in ends]
    return "\n".join([*lines[: function.body[0].end_lineno], *body, "", "", *lines[ends[0] :]]) + "\n"
