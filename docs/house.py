"""Draw normlab's rooms and floors from their imports alone: python docs/house.py [OUT.svg]

A room is a folder of the package. It stands one floor above the highest room that it imports from, wherever in a file
the import is. Without OUT.svg: docs/house.svg. Prints each floor's rooms with their files and lines.
"""

import ast
import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

HERE = Path(__file__).parent
PACKAGE = HERE.parent / "normlab"
WIDTH, HEIGHT, GAP = 1.5, 0.62, 0.55  # of a room, and between floors, in inches


def rooms() -> dict[str, list[Path]]:
    """Return each room's Python files."""
    return {
        folder.name: sorted(folder.rglob("*.py"))
        for folder in sorted(PACKAGE.iterdir())
        if folder.is_dir() and any(folder.rglob("*.py"))
    }


def imported(file: Path, names: set[str]) -> set[str]:
    """Return which rooms a file imports from."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names & {module.split(".")[1] for module in modules if module.startswith("normlab.")}


def imports(files: dict[str, list[Path]]) -> dict[str, set[str]]:
    """Return which other rooms each room imports from."""
    return {room: set().union(*(imported(file, set(files)) for file in own)) - {room} for room, own in files.items()}


def floors(below: dict[str, set[str]]) -> list[list[str]]:
    """Return the rooms of each floor, the ground floor first.

    Raises:
        ValueError: rooms that import each other, named.
    """
    found: list[list[str]] = []
    placed: set[str] = set()
    while len(placed) < len(below):
        floor = sorted(room for room in below if room not in placed and below[room] <= placed)
        if not floor:
            raise ValueError(f"a circle of imports among {', '.join(sorted(below.keys() - placed))}")
        found.append(floor)
        placed |= set(floor)
    return found


def draw(levels: list[list[str]], below: dict[str, set[str]]) -> Figure:
    """Return the drawing: a box for each room, a line from it to each room that it imports from."""
    widest = max(map(len, levels))
    figure = Figure(figsize=(widest * WIDTH * 1.25, len(levels) * (HEIGHT + GAP)))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, widest * WIDTH * 1.25), ylim=(0, len(levels) * (HEIGHT + GAP)))
    axes.axis("off")
    places = {}
    for number, level in enumerate(levels):
        step = widest * WIDTH * 1.25 / len(level)
        for index, room in enumerate(level):
            places[room] = (index + 0.5) * step, number * (HEIGHT + GAP) + (HEIGHT + GAP) / 2
    for room, (x, y) in places.items():
        for other in sorted(below[room]):
            end_x, end_y = places[other]
            axes.plot([x, end_x], [y - HEIGHT / 2, end_y + HEIGHT / 2], color="#8899aa", linewidth=0.7, zorder=1)
        box = mpl.patches.FancyBboxPatch(
            (x - WIDTH / 2, y - HEIGHT / 2), WIDTH, HEIGHT, boxstyle="round,pad=0,rounding_size=0.08",
            facecolor="#eef4fb", edgecolor="#33557a", zorder=2,
        )  # fmt: skip
        axes.add_patch(box)
        axes.text(x, y, room, ha="center", va="center", fontsize=12, color="#12283f", zorder=3)
    return figure


def main(out: Path = HERE / "house.svg") -> None:
    """Draw, and print a table."""
    files = rooms()
    below = imports(files)
    levels = floors(below)
    for number, level in reversed(list(enumerate(levels))):
        for room in level:
            lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files[room])
            print(f"{number}  {room:10} {len(files[room]):4} files {lines:7,} lines")
    mpl.rcParams["svg.hashsalt"] = "normlab"  # the same drawing is the same file
    draw(levels, below).savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
