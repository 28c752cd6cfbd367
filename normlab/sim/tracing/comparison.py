"""Compare two traces, metric by metric."""

import sys
from typing import Any

from normlab.sim.tracing.counts import METRICS, number, shown
from normlab.sim.tracing.data import TraceData
from normlab.sim.tracing.tables import Row, aligned, html_table, terminal_width


class Comparison:
    """Two traces side by side, metric by metric. `print` it; a notebook shows a table.

    Attributes:
        labels: what the columns are called. metrics: name → the values of both.
    """

    def __init__(self, one: TraceData, other: TraceData, labels: tuple[str, str] | None = None):
        """Compare `other` with `one`; call the columns `labels`, or by their kernels, numbered if these are equal.

        Raises TypeError for labels that are no two strings, ValueError for two that are the same.
        """
        self.one, self.other = one, other  # `draw_comparison` names their launch configurations, too
        self.labels = _names_of(one, other) if labels is None else _two_labels(labels)
        # METRICS has 30 names, and most kernels use a few: a row of zeros says nothing.
        names = [name for name in METRICS if one.metrics[name] or other.metrics[name]]
        self.metrics = {name: (one.metrics[name], other.metrics[name]) for name in names}

    def rows(self, short: bool = False) -> list[Row]:
        """Return a head, then [metric, one, other, other / one]; `short`: with the metrics' short titles."""
        rows = [["metric", *self.labels, "second / first"]]
        for name, (mine, others) in self.metrics.items():
            # Nothing is how many times as much as nothing: a metric that is 0 in the first trace has no ratio.
            ratio = f"{others / mine:.2f}" if mine else "-"
            rows.append([shown(name) if short else name, number(mine), number(others), ratio])
        return rows

    def __repr__(self) -> str:
        """Return the two labels and the number of metrics."""
        return f"<Comparison of {self.labels[0]} and {self.labels[1]}: {len(self.metrics)} metrics>"

    def __str__(self) -> str:
        """Return the table as text, with short titles if a terminal is too narrow for the full names."""
        width, text = terminal_width(sys.stdout), aligned(self.rows(), left=1)
        # Full names, such as Nsight Compute takes, have up to 68 characters. A file (width None) always gets them.
        if width is None or max(map(len, text.split("\n"))) <= width:
            return text
        return aligned(self.rows(short=True), left=1)

    def _repr_html_(self) -> str:
        return html_table(self.rows(), left=1)


def _names_of(one: TraceData, other: TraceData) -> tuple[str, str]:
    # Two configurations of one kernel are compared often: columns of one name could not be told apart.
    if one.kernel != other.kernel:
        return one.kernel, other.kernel
    return f"{one.kernel} (1)", f"{other.kernel} (2)"


def _two_labels(labels: Any) -> tuple[str, str]:
    # Not any two entries: "ab" is a sequence of two strings, too.
    given = labels if isinstance(labels, (tuple, list)) else ()
    if len(given) != 2 or not all(isinstance(label, str) for label in given):
        raise TypeError(f"labels takes two strings, one for each trace, not {labels!r}")
    if given[0] == given[1]:
        raise ValueError(f"the labels of two traces must differ, and both are {given[0]!r}")
    return given[0], given[1]
