"""The simulator's rooms import downwards only, and no files of normlab import each other in a circle.

Imports for type checkers and imports inside functions count, too: a reader has to follow them all the same.
"""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import normlab

PACKAGE = Path(normlab.__file__).parent
# A room of the simulator → the rooms that it may import, beside itself. `protocols` is a file that all may import.
BELOW = {
    "protocols": set(),
    "language": {"protocols"},
    "machine": {"protocols", "language"},
    "vectorised": {"protocols", "language", "machine"},
    "tracing": {"protocols", "language", "machine"},
    "sanitizing": {"protocols", "language", "machine"},
}


def name_of(path: Path) -> str:
    """Return a file's name as an import has it."""
    return ".".join(["normlab", *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__")


FILES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports(source: str) -> set[str]:
    """Return the files of normlab that `source` imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in FILES else str(node.module) for name in inside}
    return names & FILES.keys()


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Return the names along a circle, the first of them again as the last; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_no_files_import_each_other_in_a_circle():
    graph = {name: imports(path.read_text()) - {name} for name, path in FILES.items()}
    assert sum(map(len, graph.values())) > len(graph)
    assert circle(graph) == []


def test_a_circle_is_found():
    lower, upper = "normlab.sim.machine.threads", "normlab.sim.machine.warp"
    hidden = f"from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from {upper} import Warp"
    assert set(circle({lower: imports(hidden), upper: imports(FILES[upper].read_text())})) == {lower, upper}


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("normlab.sim.")])
def test_the_simulators_rooms_import_downwards_only(name):
    room = name.split(".")[2]
    others = {one.split(".")[2] if one.count(".") > 1 else one for one in imports(FILES[name].read_text())}
    assert others - {room} <= BELOW[room]


def lengths(source: str) -> tuple[int, int]:
    """Return the lines of a file, and those of its longest function."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    longest = max(((node.end_lineno or node.lineno) - node.lineno + 1 for node in functions), default=0)
    return len(source.splitlines()), longest


def test_the_simulators_files_and_functions_stay_short():
    sizes = {name: lengths(path.read_text()) for name, path in FILES.items() if name.startswith("normlab.sim.")}
    assert {name: size for name, size in sizes.items() if size[0] > 400 or size[1] > 80} == {}


def test_a_long_function_is_found():
    assert lengths("def long():\n" + "    pass\n" * 80) == (81, 81)
