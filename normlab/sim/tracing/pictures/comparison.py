"""Draw the metrics of two traces as pairs of bars: `Trace.draw_comparison`."""

from typing import TYPE_CHECKING, Any

from normlab.sim.tracing.comparison import Comparison
from normlab.sim.tracing.counts import METRICS, number
from normlab.sim.tracing.pictures import ink

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_comparison(comparison: Comparison, ax: "Axes | None" = None) -> "Axes":
    """Draw two bars for every metric of a `Comparison`, and return the axes.

    Each pair of bars is scaled to its larger value, because metrics have different units. So there is no axis of
    values: each value is printed at the end of its bar. `ax`: the axes to draw in; None: a new figure.

    A `Comparison` leaves out a metric that is 0 in both traces, so no pair is divided by 0.
    """
    names = list(comparison.metrics)
    ax = ink.axes(ax, 8.5, 1.8 + 0.42 * len(names))
    looks: tuple[dict[str, Any], ...] = (
        {"facecolor": ink.DARK},
        {"facecolor": "white", "edgecolor": ink.ALERT, "hatch": "////"},
    )
    traces = (comparison.one, comparison.other)
    for side, (trace, look) in enumerate(zip(traces, looks, strict=True)):
        values = [pair[side] for pair in comparison.metrics.values()]
        shares = [pair[side] / max(pair) for pair in comparison.metrics.values()]
        places = [row + 0.38 * side for row in range(len(names))]
        name = f"{comparison.labels[side]}, grid {trace.grid}, block {trace.block}"
        ax.barh(places, shares, height=0.34, label=name, **look)
        for place, share, value in zip(places, shares, values, strict=True):
            ax.text(share + 0.01, place, number(value), va="center", fontsize=ink.SMALL, color=ink.TEXT)
    ax.set_yticks([row + 0.19 for row in range(len(names))], [METRICS[name].short for name in names])
    ax.set_xticks([])
    ax.set_xlim(0, 1.18)
    ax.set_ylim(len(names) - 0.2, -0.45)
    ink.labels(ax, "each pair scaled to its larger value", "")
    ax.set_title(" and ".join(comparison.labels), loc="left", fontsize=ink.PLAIN, color=ink.TEXT)
    ink.legend(ax, 1)
    return ax
