"""Define the look of the pictures. They are also printed in grey, so shape, hatch and text repeat what colour says."""

import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.legend import Legend

DARK = "#1b4f8a"  # what is used, or in order
ALERT = "#c8401a"  # what costs: conflicts
PALE = "#dfe5ec"  # what moves along unused
GRID = "#c3c9d1"
ABSENT: dict[str, Any] = {"facecolor": "#f7f8fa", "hatch": "xxxx", "edgecolor": "#c3c9d1"}  # a lane not active
TEXT = "#20262e"
SMALL, PLAIN = 8.5, 10.5  # type, in points


def axes(given: "Axes | None", width: float, height: float) -> "Axes":
    """Return the given axes, or the axes of a new figure of this size in inches."""
    if given is not None:
        return given
    # Here, because matplotlib takes long to import, and a trace is often only printed.
    import matplotlib
    from matplotlib.backends import BackendFilter, backend_registry

    size: dict[str, Any] = {"figsize": (width, height), "layout": "constrained"}
    # In a notebook or a window the figure is pyplot's, so that it is shown. A script without windows gets a figure that
    # Python frees with its axes; pyplot would keep it.
    if matplotlib.get_backend().lower() in backend_registry.list_builtin(BackendFilter.NON_INTERACTIVE):
        from matplotlib.figure import Figure

        return Figure(**size).subplots()
    from matplotlib import pyplot

    with warnings.catch_warnings():  # a loop over requests may open many: a notebook closes them after the cell
        warnings.filterwarnings("ignore", "More than .* figures", RuntimeWarning)
        return pyplot.subplots(**size)[1]


def title(axes: "Axes", what: str, numbers: str, room: bool = False) -> None:
    """Write the picture's subject, and below it the numbers; `room`: leave a line free below them."""
    axes.set_title(f"{what}\n{numbers}", loc="left", fontsize=PLAIN, color=TEXT, pad=18 if room else 8)


def labels(axes: "Axes", x: str, y: str) -> None:
    """Name the axes."""
    axes.set_xlabel(x, fontsize=PLAIN, color=TEXT)
    axes.set_ylabel(y, fontsize=PLAIN, color=TEXT)
    axes.tick_params(labelsize=SMALL, colors=TEXT)
    for spine in axes.spines.values():
        spine.set_color(GRID)


def legend(axes: "Axes", columns: int) -> "Legend":
    """Put the legend below the picture, where it hides nothing."""
    return axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        borderaxespad=4.8,  # in widths of type: below the axis's label
        ncols=columns,
        fontsize=SMALL,
        frameon=False,
        handlelength=2.4,
        columnspacing=1.6,
    )
