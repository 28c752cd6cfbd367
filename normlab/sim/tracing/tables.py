"""Traces as tables: plain text for a terminal, HTML for a notebook."""

from html import escape
from typing import TYPE_CHECKING

from normlab.sim.tracing.counts import METRICS

if TYPE_CHECKING:
    from normlab.sim.tracing.trace import Trace

Row = list[str]


def number(value: float) -> str:
    """Return a counter with thousands separated, or a ratio with two digits."""
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"


def shown(name: str) -> str:
    """Return the short title of a metric."""
    return METRICS[name].short


def metric_rows(trace: "Trace") -> list[Row]:
    """Return [metric, value] for every metric that is not 0."""
    return [[name, number(value)] for name, value in trace.metrics.items() if value]


def line_rows(trace: "Trace") -> list[Row]:
    """Return a header and a row for every line; only columns in which some line has a value."""
    lines = trace.by_line()
    names = [name for name in METRICS if any(row.metrics.get(name) for row in lines) and not _derived(name)]
    head = ["line", "source", *map(shown, names)]
    several = len({row.line.file for row in lines}) > 1
    rows = [
        [
            f"{row.line.file.rsplit('/', 1)[-1]}:{row.line.number}" if several else str(row.line.number),
            row.line.text.partition("  #")[0],
            *(number(row.metrics[name]) if row.metrics[name] else "" for name in names),
        ]
        for row in lines
    ]
    return [head, *rows]


def _derived(name: str) -> bool:
    """Return whether a metric says nothing that its neighbours do not: it would widen a table by a column."""
    return "bytes_moved" in name or "sectors_per_request" in name


def aligned(rows: list[Row], left: int) -> str:
    """Return rows as text, the first `left` columns aligned to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def html_table(rows: list[Row], left: int) -> str:
    """Return rows, the first of them the head, as an HTML table that a notebook's width holds.

    The first `left` columns are names and code, the others numbers. A short title has its metric's full name as a
    tooltip, a full name what it means.
    """
    tips = {metric.short: name for name, metric in METRICS.items()}
    tips |= {name: metric.meaning for name, metric in METRICS.items()}

    def cells(row: Row, tag: str) -> str:
        code = "text-align: left; font-family: monospace"
        wraps = f"{code}; min-width: 13em; overflow-wrap: anywhere"
        kinds = [*[code] * (left - 1), wraps, *["text-align: right"] * (len(row) - left)]
        return "".join(
            f'<{tag} style="{kind}; padding: 2px 6px"'
            + (f' title="{escape(tips[cell])}"' if cell in tips else "")
            + f">{escape(cell).replace('/', '/<wbr>')}</{tag}>"
            for kind, cell in zip(kinds, row, strict=True)
        )

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows[1:])
    table = f"<table><thead><tr>{cells(rows[0], 'th')}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div style="max-width: 100%; overflow-x: auto">{table}</div>'


def title(trace: "Trace") -> str:
    """Return kernel and launch configuration."""
    return f"{trace.kernel}[{trace.grid}, {trace.block}]"


def as_text(trace: "Trace") -> str:
    """Return a trace's metrics and lines."""
    metrics = aligned([["metric", "value"], *metric_rows(trace)], left=1)
    return f"{title(trace)}\n\n{metrics}\n\n{aligned(line_rows(trace), left=2)}"


def as_html(trace: "Trace") -> str:
    """Return a trace's lines, then its metrics, as two HTML tables."""
    lines = html_table(line_rows(trace), left=2)
    metrics = html_table([["metric", "", "value"], *([name, shown(name), n] for name, n in metric_rows(trace))], left=2)
    return f"<div><h4>{escape(title(trace))}</h4>{lines}<br>{metrics}</div>"


class Comparison:
    """Two traces side by side, metric by metric."""

    def __init__(self, one: "Trace", other: "Trace"):
        """Compare `other` with `one`."""
        self.one, self.other = one, other
        names = [name for name in METRICS if one.metrics[name] or other.metrics[name]]
        self.metrics = {name: (one.metrics[name], other.metrics[name]) for name in names}

    def rows(self) -> list[Row]:
        """Return a head, then [metric, one, other, other / one]."""
        rows = [["metric", self.one.kernel, self.other.kernel, "ratio"]]
        for name, (mine, others) in self.metrics.items():
            rows.append([name, number(mine), number(others), f"{others / mine:.2f}" if mine else "-"])
        return rows

    def __str__(self) -> str:
        """Return the table as text."""
        return aligned(self.rows(), left=1)

    def _repr_html_(self) -> str:
        return html_table(self.rows(), left=1)
