"""Measure for a subcommand of `normlab bench`, if there is a GPU."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from normlab.cli.completion import one_of, some_of
from normlab.cli.recording import Record, recorded

Norms = Annotated[
    str, typer.Option(metavar="NAME", autocompletion=one_of("layer", "rms", "both"), help="layer, rms or both.")
]
Directions = Annotated[
    str,
    typer.Option(
        metavar="NAME", autocompletion=one_of("forward", "backward", "both"), help="forward, backward or both."
    ),
]
Peers = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME,…",
        autocompletion=some_of("none", "torch", "compile", "compile-inference", "liger", "quack", "apex", "triton"),
        show_default=False,
        help="torch, compile, liger, quack, apex, triton; or none. Default: all. And compile-inference, only if named: "
        "torch.compile's forward without statistics, which is less work than all others do.",
    ),
]


def measured(
    measure: Callable[[Callable[[], None]], Record],
    count: int | None,
    instead: str,
    json_file: Path | None,
    plot: Path | None = None,
) -> None:
    """Make a record on the GPU by `measure`, in `count` steps if known; write it to the files and show it.

    `instead` names the ladder or direction that `normlab trace` can show where there is no GPU.
    """
    from normlab.bench import machine, plots, tables
    from normlab.measure import files, pictures

    pictures.check_suffix(plot)
    machine.require_gpu("forward" if instead == "both" else instead)
    files.check_writable(json_file, plot)
    recorded(measure, count, tables.show, lambda record, path: plots.draw([record], path), json_file, plot)
