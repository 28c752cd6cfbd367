"""Give every picture of a measurement one look: transparent, with grey ink, readable on a light and on a dark page."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

INK = "#808080"
SUFFIXES = (".svg", ".png", ".pdf")


@contextmanager
def style() -> Iterator[None]:
    """Set the look of every picture that is drawn and saved inside the `with` block."""
    import matplotlib as mpl

    colored = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    chosen: Any = {"svg.hashsalt": "normlab", "svg.fonttype": "none", "font.size": 9, **dict.fromkeys(colored, INK)}
    with mpl.rc_context(chosen):
        yield


def save(figure: Any, path: Path) -> None:
    """Write a figure without the date, so that the same record makes the same file."""
    metadata = {"Date": None} if path.suffix == ".svg" else {}
    figure.savefig(path, transparent=True, dpi=150, metadata=metadata)


def check_suffix(path: Path | None) -> None:
    """Raise ValueError for a file of a kind that cannot be drawn; None is no file."""
    if path is not None and path.suffix not in SUFFIXES:
        raise ValueError(f"--plot {path}: the name must end in {', '.join(SUFFIXES)}")
