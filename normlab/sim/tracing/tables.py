"""Show traces as tables: plain text for a terminal or a file, HTML for a notebook.

No line is wider than the terminal. A table in a file is complete.
"""

import os
from html import escape
from textwrap import wrap
from typing import Any

from normlab.sim.language.source import NO_SOURCE, file_name
from normlab.sim.tracing.counts import METRICS, number, shown
from normlab.sim.tracing.data import TraceData

Row = list[str]
NARROWEST = 60  # columns that a terminal is expected to have
SMALLEST_SOURCE = 24  # characters of a source line that a table shows at least
NOTHING = "no memory request, no synchronisation"
# Heads of the columns that a narrow terminal leaves out, in this order, because other columns tell as much or more.
LEAST_TELLING = ("lanes/request", "st requests", "ld requests", "votes", "warp syncs", "grid syncs")


def terminal_width(stream: Any, indented: int = 0) -> int | None:
    """Return the columns, 60 or more, that a terminal has for what stands `indented`; None if `stream` is none."""
    try:
        return max(NARROWEST, os.get_terminal_size(stream.fileno()).columns) - indented
    except (OSError, AttributeError, ValueError):  # a file, a pipe, a notebook
        return None


def metric_rows(trace: TraceData) -> list[Row]:
    """Return [metric, value] for every metric that is not 0."""
    return [[name, number(value)] for name, value in trace.metrics.items() if value]


def line_rows(trace: TraceData, files: bool = False) -> list[Row]:
    """Return a header and a row for every line; only columns in which some line has a value.

    Files are named if there are several, or if `files` asks for it.
    """
    lines = trace.by_line()
    # `get`, because unique bytes are metrics of a launch and no line has them.
    names = [name for name in METRICS if any(row.metrics.get(name) for row in lines) and not _derived(name)]
    head = ["line", "source", *map(shown, names)]
    files = files or len({row.line.file for row in lines}) > 1
    rows = [
        [
            f"{file_name(row.line.file)}:{row.line.number}" if files else str(row.line.number),
            row.line.text.partition("  #")[0] or NO_SOURCE,  # without the comment: the column is for the code
            *(number(row.metrics[name]) if row.metrics[name] else "" for name in names),
        ]
        for row in lines
    ]
    return [head, *rows]


def _derived(name: str) -> bool:
    """Return whether a metric follows from other columns of the table, and would only make it wider."""
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


def as_table(rows: list[Row], left: int) -> str:
    """Return rows, the first of them the head, as text; the titles of numbers go over several lines."""
    heads = _stacked(rows[0], left)
    # Head and body are aligned together, so that they have the same widths; the rule goes between them afterwards.
    lines = aligned(heads + rows[1:], left).split("\n")
    return "\n".join([*lines[: len(heads)], "-" * max(map(len, lines)), *lines[len(heads) :]])


def fitted(rows: list[Row], width: int | None) -> str:
    """Return a table whose first column is names as text of at most `width` columns; None: as many as it takes."""
    dropped: list[str] = []
    # A table of a ladder's steps has no source text to cut, so it leaves out columns: those of `LEAST_TELLING` first,
    # then from the right, and a note names them. One column of numbers stays, however narrow the terminal.
    while width is not None and _width(rows, left=1) > width and len(rows[0]) > 2:
        weak = [title for title in LEAST_TELLING if title in rows[0]]
        column = rows[0].index(weak[0]) if weak else len(rows[0]) - 1
        dropped.append(rows[0][column])
        rows = [[*row[:column], *row[column + 1 :]] for row in rows]
    note = f"no room for {', '.join(dropped)}: a wider terminal shows them, and so does a file"
    return "\n".join([as_table(rows, left=1), *(wrap(note, width or 80) if dropped else ())])


def lines_text(trace: TraceData, width: int | None, files: bool = False) -> str:
    """Return what every line did, as text of at most `width` columns; None: as many as it takes."""
    rows = line_rows(trace, files)
    if len(rows) == 1:
        return NOTHING
    if width is None:
        return as_table(rows, left=2)
    longest = max(len(row[1]) for row in rows)
    # The source column gives up exactly the characters that are too much, down to its smallest width. Where that is not
    # enough, the columns of numbers are given up, and a line's counters stand below its source.
    room = max(SMALLEST_SOURCE, longest - max(0, _width(rows, left=2) - width))
    cut = [[row[0], _cut(row[1], room), *row[2:]] for row in rows]
    return as_table(cut, left=2) if _width(cut, left=2) <= width else _folded(rows, width)


def _folded(rows: list[Row], width: int) -> str:
    """Return a line's number and source, below them its counters, and so on; the first row is the head."""
    margin = max(len(row[0]) for row in rows[1:]) + 2
    text = []
    for where, source, *values in rows[1:]:
        text.append(where.ljust(margin) + _cut(source, width - margin))
        counters = [f"{head} {value}" for head, value in zip(rows[0][2:], values, strict=True) if value]
        # textwrap breaks at blanks only, so a counter's own blanks are hidden from it.
        joined = [counter.replace(" ", "\0") for counter in counters]  # a counter stays in one line
        told = wrap(", ".join(joined), width, initial_indent=" " * margin, subsequent_indent=" " * margin)
        text += [line.replace("\0", " ") for line in told]
    return "\n".join(text)


def _stacked(head: Row, left: int) -> list[Row]:
    """Return a head whose titles of numbers go over several lines, as those lines."""
    # A title such as "lanes/request" is wider than its numbers, so it has a word in each line, broken at slashes, too.
    words = [[title] if column < left else title.replace("/", "/ ").split() for column, title in enumerate(head)]
    # Short titles get blank lines above them, so that all titles end next to the numbers.
    depth = max(map(len, words))
    return [list(line) for line in zip(*([""] * (depth - len(title)) + title for title in words), strict=True)]


def _width(rows: list[Row], left: int) -> int:
    # Of the table as it will be printed: the widths of its columns depend on the stacked head.
    return max(map(len, aligned(_stacked(rows[0], left) + rows[1:], left).split("\n")))


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def html_table(rows: list[Row], left: int) -> str:
    """Return rows, the first of them the head, as an HTML table that a notebook's width holds.

    The first `left` columns are names and code, the others numbers. A short title has its metric's full name as a
    tooltip, a full name what it means.
    """
    tips = {metric.short: name for name, metric in METRICS.items()}
    tips |= {name: metric.meaning for name, metric in METRICS.items()}

    # A style for each cell, because a notebook's page has no style sheet of ours.
    def cells(row: Row, tag: str) -> str:
        code = "text-align: left; font-family: monospace"
        wraps = f"{code}; min-width: 13em; overflow-wrap: anywhere"
        kinds = [*[code] * (left - 1), wraps, *["text-align: right"] * (len(row) - left)]
        return "".join(
            f'<{tag} style="{kind}; padding: 2px 6px"'
            + (f' title="{escape(tips[cell])}"' if cell in tips else "")
            # A browser may break a long title after a slash, as the text table does.
            + f">{escape(cell).replace('/', '/<wbr>')}</{tag}>"
            for kind, cell in zip(kinds, row, strict=True)
        )

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows[1:])
    table = f"<table><thead><tr>{cells(rows[0], 'th')}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div style="max-width: 100%; overflow-x: auto">{table}</div>'


def title(trace: TraceData) -> str:
    """Return kernel and launch configuration."""
    clusters = f", clusters of {trace.cluster}" if trace.cluster > 1 else ""
    return f"{trace.kernel}[{trace.grid}, {trace.block}]{clusters}"


def as_text(trace: TraceData, width: int | None) -> str:
    """Return a trace's metrics and lines in `width` columns, or as many as it takes."""
    metrics = metric_rows(trace)
    head = [aligned([["metric", "value"], *metrics], left=1)] if metrics else []
    return "\n\n".join([title(trace), *head, lines_text(trace, width)])


def as_html(trace: TraceData) -> str:
    """Return a trace's lines, then its metrics, as two HTML tables."""
    if not trace.by_line():
        return f"<div><h4>{escape(title(trace))}</h4><p>{NOTHING}</p></div>"
    lines = html_table(line_rows(trace), left=2)
    metrics = html_table([["metric", "", "value"], *([name, shown(name), n] for name, n in metric_rows(trace))], left=2)
    return f"<div><h4>{escape(title(trace))}</h4>{lines}<br>{metrics}</div>"
