"""Draw an array: how often each element was accessed."""

from typing import TYPE_CHECKING

from normlab.sim.tracing.heat import Heat
from normlab.sim.tracing.pictures import ink
from normlab.sim.tracing.pictures.grid import HeatGrid, heat_grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROOM_FOR_NUMBERS = 32, 16  # columns, rows


def draw_heat(
    heat: Heat,
    operation: str | None = None,
    width: int | None = None,
    ax: "Axes | None" = None,
    blocks: int = 1,
) -> "Axes":
    """Draw how often each element of an array was accessed, in `ax` or a figure of its own.

    The darker, the more often; hatched: never. `operation`: "ld", "st", or None for loads and stores together. A 1-D
    array is wrapped into rows of `width` elements; of an array of three dimensions and more all but the last count as
    rows; a large array is binned, and the colour bar says how. `blocks`: of the launch.
    """
    import numpy as np
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap
    from matplotlib.ticker import MaxNLocator

    seen = heat_grid(heat, operation, width, blocks)
    rows, columns = seen.cells.shape
    ax = ink.axes(ax, 9.0, min(8.0, 2.6 + 0.3 * max(2, rows)))
    # Hatching below the mesh shows through where the mesh is masked: elements that were never accessed.
    ax.axhspan(0, seen.shape[0], facecolor="white", hatch="////", edgecolor=ink.GRID, linewidth=0, zorder=0)
    most = max(1.0, float(np.nanmax(seen.cells)))
    mesh = ax.pcolormesh(
        np.minimum(np.arange(columns + 1) * seen.wide, seen.shape[1]),
        np.minimum(np.arange(rows + 1) * seen.tall, seen.shape[0]),
        np.ma.masked_where(~(seen.cells > 0), seen.cells),
        # The palest colour is left out, so that one access differs from the white of the paper.
        cmap=ListedColormap(colormaps["Blues"](np.linspace(0.18, 1, 256))),
        vmin=0,
        vmax=most,
        gid="touched",
        edgecolor="white",
        linewidth=0.3 if rows * columns <= 2048 else 0,
    )
    bar = ax.figure.colorbar(mesh, ax=ax, pad=0.02, aspect=30)
    bar.set_label(f"{seen.binning}\n(hatched: none)", fontsize=ink.SMALL, color=ink.TEXT)
    bar.locator = MaxNLocator(6, integer=seen.tall == seen.wide == 1)
    bar.ax.tick_params(labelsize=ink.SMALL, colors=ink.TEXT)
    if columns <= ROOM_FOR_NUMBERS[0] and rows <= ROOM_FOR_NUMBERS[1]:
        _draw_numbers(ax, seen, 0.6 * most)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(9, integer=True, steps=[1, 2, 4, 8, 10]))
    ax.set_xlim(0, seen.shape[1])
    ax.set_ylim(seen.shape[0], 0)
    ink.labels(ax, *seen.axes)
    ink.title(ax, seen.subject, seen.numbers)
    return ax


def _draw_numbers(ax: "Axes", seen: HeatGrid, dark: float) -> None:
    """Write its number into every cell, in white on what is darker than `dark`."""
    for row, line in enumerate(seen.cells):
        for column, value in enumerate(line):
            if value > 0:
                place = seen.wide * (column + 0.5), seen.tall * (row + 0.5)
                colour = "white" if value > dark else ink.TEXT
                ax.text(*place, f"{value:.3g}", ha="center", va="center_baseline", fontsize=7, color=colour)
