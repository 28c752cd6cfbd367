"""`normlab bench report`."""

from pathlib import Path
from typing import Annotated

import typer

from normlab.cli.errors import refusing
from normlab.cli.options import Plot


def bench_report(
    chosen: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECORD…", show_default=False, help="Files, or names in normlab/bench/records. Default: all there."
        ),
    ] = None,
    readme: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False, help="Put the tables between the markers of this file."),
    ] = None,
    plot: Plot = None,
) -> None:
    """The records' tables as Markdown; needs no GPU.

    Exit code: 0, or 2 when a record or the README cannot be used.
    """
    from normlab.bench import plots, records
    from normlab.bench.readme import benchmarks, insert

    with refusing("bench report"):
        found = records.load(chosen or [])
        if plot is not None:
            plots.draw(found, plot)
        if readme is not None:
            insert(readme, benchmarks(found))
        else:
            typer.echo(benchmarks(found))
