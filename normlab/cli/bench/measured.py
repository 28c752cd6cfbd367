"""Measure for a subcommand of `normlab bench`: with a progress bar; then write, draw and show the record."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from normlab.cli.waiting import progress

Peers = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME,…",
        show_default=False,
        help="torch, compile, liger, quack, apex, triton; or none. Default: all. And compile-inference, only if named: "
        "torch.compile's forward without statistics, which is less work than all others do.",
    ),
]


def measured(
    measure: Callable[[Callable[[], None]], dict[str, Any]],
    count: int,
    instead: str,
    json_file: Path | None,
    plot: Path | None = None,
) -> None:
    """Make a record on the GPU, which `measure` does in `count` steps, and hand it on to files and terminal.

    `instead` names the ladder or direction that `normlab trace` can show where there is no GPU.
    """
    from normlab.bench import machine, plots, tables
    from normlab.measure import files, pictures

    pictures.check_suffix(plot)
    machine.require_gpu("forward" if instead == "both" else instead)
    files.check_writable(json_file, plot)
    with progress(count) as advance:
        record = measure(advance)
    if json_file is not None:
        files.write(record, json_file)
    if plot is not None:
        plots.draw([record], plot)
    tables.show(record)
