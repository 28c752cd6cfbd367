"""Draw the four index sets: which elements of (N, C, spatial) share a mean and a variance."""

from typing import Any

INK = "#808080"
OTHERS = "#dfe5ec"
FIRST, SECOND = "#e8590c", "#4c9be8"
N, C, L, GROUPS = 3, 4, 4, 2
RIGHT, UP = 0.62, 0.45  # how far a step into the depth goes on paper, in edges of an element
# name, the elements that a set consists of, the number of sets, and the number of the set that (n, c) belongs to
NORMS = (
    ("Batch norm", "a channel, of all samples", "C sets", lambda n, c: c),
    ("Layer norm", "a sample", "N sets", lambda n, c: n),
    ("Instance norm", "a channel of a sample", "N · C sets", lambda n, c: c + C * n),
    ("Group norm", "C / G channels of a sample", "N · G sets", lambda n, c: c // (C // GROUPS) + GROUPS * n),
)


def plot_index_sets() -> Any:
    """Draw batch, layer, instance and group norm's sets over a block of N samples, C channels and a few positions.

    The first two sets of each norm are coloured, the first one in orange. Returns a matplotlib Figure with a panel per
    norm. `figure.savefig("index_sets.svg")` writes it with a transparent background, for light and for dark pages.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.5, 3.7), facecolor="none", layout="constrained")
    for axes, norm in zip(figure.subplots(1, len(NORMS)), NORMS, strict=True):
        _panel(axes, *norm)
    return figure


def _panel(axes: Any, name: str, members: str, count: str, set_of: Any) -> None:
    """Draw one norm: channels to the right, positions upwards, samples into the depth, the first one in front."""
    for n in reversed(range(N)):  # the last sample first, so that the samples in front cover it
        for c in range(C):
            for at in range(L):
                _cube(axes, n, c, at, {0: FIRST, 1: SECOND}.get(set_of(n, c), OTHERS))
    axes.text(C / 2, -0.35, "C", ha="center", va="top", color=INK, size=11)
    axes.text(-0.3, L / 2, "H · W", ha="right", va="center", color=INK, size=11, rotation=90)
    right, up = _shifted(C, 0, N / 2)
    axes.text(right + 0.25, up - 0.1, "N", ha="left", va="top", color=INK, size=11)
    middle, top = (C + RIGHT * N) / 2, L + UP * N
    axes.text(middle, top + 1.0, name, ha="center", va="bottom", color=INK, size=13, weight="bold")
    axes.text(middle, top + 0.35, f"{members}: {count}", ha="center", va="bottom", color=INK, size=9)
    axes.set_aspect("equal")
    axes.set_xlim(-0.9, C + RIGHT * N + 0.6)
    axes.set_ylim(-0.9, top + 1.8)
    axes.axis("off")


def _shifted(x: float, y: float, depth: float) -> tuple[float, float]:
    """Return the position on paper of a point of the block: the depth goes to the upper right."""
    return x + RIGHT * depth, y + UP * depth


def _cube(axes: Any, n: int, c: int, at: int, color: str) -> None:
    """Draw the three visible faces of an element: front, right and top, of which the front is the lightest."""
    front = [(c, at, n), (c + 1, at, n), (c + 1, at + 1, n), (c, at + 1, n)]
    right = [(c + 1, at, n), (c + 1, at, n + 1), (c + 1, at + 1, n + 1), (c + 1, at + 1, n)]
    top = [(c, at + 1, n), (c + 1, at + 1, n), (c + 1, at + 1, n + 1), (c, at + 1, n + 1)]
    for corners, shade in ((front, 1.0), (right, 0.82), (top, 0.92)):
        points = [_shifted(*corner) for corner in corners]
        axes.fill(*zip(*points, strict=True), facecolor=_shaded(color, shade), edgecolor="white", linewidth=0.8)


def _shaded(color: str, shade: float) -> tuple[float, ...]:
    """Return a colour multiplied by a shade: a shade below 1 makes it darker."""
    from matplotlib.colors import to_rgb

    return tuple(shade * part for part in to_rgb(color))
