"""`normlab bench report`."""

from typing import Annotated

import typer

from normlab.cli.completion import records
from normlab.cli.errors import refusing
from normlab.cli.options import Plot


def bench_report(
    chosen: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECORD…",
            autocompletion=records,
            show_default=False,
            help="Files, or names in normlab/bench/records. Default: all there.",
        ),
    ] = None,
    plot: Plot = None,
) -> None:
    """The records' tables as Markdown; needs no GPU.

    Exit code: 0, or 2 when a record cannot be used.
    """
    from normlab.bench import plots, report
    from normlab.bench.records import load

    with refusing("bench report"):
        found = load(chosen or [])
        if plot is not None:
            plots.draw(found, plot)
    typer.echo(report.markdown(found))
