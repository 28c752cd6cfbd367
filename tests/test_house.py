"""The house's floors: who imports whom, and what `import normlab` costs."""

import ast
import functools
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import normlab

PACKAGE = Path(normlab.__file__).parent
FILES = sorted(path for path in PACKAGE.rglob("*.py"))
# Higher may import lower. oracle and sim stand beside the floors and import nothing of them.
FLOORS = {
    "engine": 0,
    "measure": 0,
    "stages": 1,
    "kernels": 2,
    "host": 3,
    "nn": 4,
    "distributed": 5,
    "studies": 6,
    "learn": 6,
    "bench": 6,
    "run": 6,
    "course": 6,
    "cli": 7,
}
# Rooms of one floor that import each other: none today, six at most.
SIDEWAYS: set[tuple[str, str]] = set()


@functools.cache
def imports(path: Path) -> set[str]:
    """Full names of all modules a file imports, wherever in the file."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports are written in full here, so that they can be read and checked"
            names |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def room(name: str) -> str:
    """The first part of a module's name below normlab."""
    return name.removeprefix("normlab.").split(".")[0]


# numba_host is no second engine: it is how `normlab run` reaches the modules whose host side it replaces.
COMPILER_ROOMS = ("engine/", "run/numba_host.py")


def test_only_the_engine_imports_a_cuda_compiler():
    for path in FILES:
        if not path.relative_to(PACKAGE).as_posix().startswith(COMPILER_ROOMS):
            compilers = ("numba.cuda", "numba_cuda", "cuda.", "llvmlite")
            found = {name for name in imports(path) if name == "numba" or name.startswith(compilers)}
            assert not found, path


def test_nothing_imports_upwards_or_sideways():
    for path in FILES:
        own = room(".".join(path.relative_to(PACKAGE).with_suffix("").parts))
        houses = {room(name) for name in imports(path) if name.startswith("normlab.")} - {own, "__version__"}
        if own in ("oracle", "sim"):
            assert not houses, path
        elif own != "__init__":
            others = {name for name in houses - {"oracle", "sim"} if (own, name) not in SIDEWAYS}
            assert all(FLOORS[name] < FLOORS[own] for name in others), f"{path}, floor {FLOORS[own]}, imports {others}"


def test_the_architecture_s_picture_is_drawn_from_today_s_imports(tmp_path):
    docs = Path(__file__).parents[1] / "docs"
    runpy.run_path(str(docs / "house.py"))["main"](tmp_path / "house.svg")
    kept, drawn = (
        re.findall(r"<!-- .* -->|[ML] [\d.]+ [\d.]+", file.read_text())  # rooms' names, and lines
        for file in (docs / "house.svg", tmp_path / "house.svg")
    )
    assert kept == drawn, "python docs/house.py draws it anew"


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_import_normlab_is_light():
    heavy = python("import normlab, sys; print({'numba', 'torch', 'numpy'} & set(sys.modules))")
    assert heavy == "set()"


def test_the_host_functions_are_at_the_top_level():
    for name in normlab.__all__:
        modules = (
            "normlab.host.add_norm",
            "normlab.host.gated_norm",
            "normlab.host.norms",
            "normlab.host.exact",
            "normlab.host.matmul",
            "normlab.host.modulated_norm",
            "normlab.host.norm_linear",
            "normlab.learn.explain",
        )
        assert getattr(normlab, name).__module__ in modules
        assert dir(normlab).count(name) == 1
    with pytest.raises(AttributeError, match="module 'normlab' has no attribute 'layernorm'"):
        normlab.layernorm  # noqa: B018
