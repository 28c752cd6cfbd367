"""Draw the metrics of two traces as pairs of bars: `Trace.draw_comparison`."""

from typing import TYPE_CHECKING, Any

from normlab.sim.tracing.comparison import Comparison
from normlab.sim.tracing.counts import METRICS, number
from normlab.sim.tracing.pictures import ink

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_comparison(comparison: Comparison, ax: "Axes | None" = None) -> "Axes":
    """Draw two bars for every metric of a `Comparison` in `ax`, or a figure of its own, and return the axes."""
    names = list(comparison.metrics)
    # As tall as it has metrics, so that bars and type keep their size. In inches, as all sizes of figures.
    ax = ink.axes(ax, 8.5, 1.8 + 0.42 * len(names))
    # Hatched and not only red, so that the bars differ in a grey print, too.
    looks: tuple[dict[str, Any], ...] = (
        {"facecolor": ink.DARK},
        {"facecolor": "white", "edgecolor": ink.ALERT, "hatch": "////"},
    )
    traces = (comparison.one, comparison.other)
    for side, (trace, look) in enumerate(zip(traces, looks, strict=True)):
        values = [pair[side] for pair in comparison.metrics.values()]
        # Each pair is scaled to its larger value, because metrics have different units. That value is not 0: a
        # `Comparison` leaves out a metric that is 0 in both traces.
        shares = [pair[side] / max(pair) for pair in comparison.metrics.values()]
        # A metric's row has the height 1, of which two bars of 0.34 and a small gap between them take 0.72.
        places = [row + 0.38 * side for row in range(len(names))]
        name = f"{comparison.labels[side]}, grid {trace.grid}, block {trace.block}"
        ax.barh(places, shares, height=0.34, label=name, **look)
        for place, share, value in zip(places, shares, values, strict=True):
            ax.text(share + 0.01, place, number(value), va="center", fontsize=ink.SMALL, color=ink.TEXT)
    ax.set_yticks([row + 0.19 for row in range(len(names))], [METRICS[name].short for name in names])
    ax.set_xticks([])  # no scale, because each pair has its own: the values stand at the ends of the bars
    ax.set_xlim(0, 1.18)  # a full bar ends at 1; the rest is for its value
    ax.set_ylim(len(names) - 0.2, -0.45)  # downwards, so that the first metric stands at the top
    ink.labels(ax, "each pair scaled to its larger value", "")
    ax.set_title(" and ".join(comparison.labels), loc="left", fontsize=ink.PLAIN, color=ink.TEXT)
    ink.legend(ax, 1)
    return ax
