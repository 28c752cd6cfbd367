"""`normlab bench norm`."""

from functools import partial
from typing import Annotated

import typer

from normlab.cli.bench.measured import Directions, Norms, Peers, measured
from normlab.cli.completion import some_of
from normlab.cli.errors import refusing
from normlab.cli.options import DType, JsonFile, Plot

PATHS = {None: "saved", True: "recomputed", False: "both"}  # of --memory-efficient/--both-paths


def bench_norm(
    norm: Norms = "both",
    direction: Directions = "both",
    n2: Annotated[
        list[str] | None, typer.Option(metavar="N,…", show_default=False, help="Columns. Default: 768 to 65536.")
    ] = None,
    n1: Annotated[
        list[str] | None, typer.Option(metavar="N,…", show_default=False, help="Rows. Default: --elements over n2.")
    ] = None,
    elements: Annotated[str, typer.Option(metavar="N", help="Elements of x, where --n1 is not given.")] = "2^27",
    dtype: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,…",
            autocompletion=some_of(*DType),
            show_default=False,
            help="Default: bfloat16,float16,float32.",
        ),
    ] = None,
    peers: Peers = None,
    memory_efficient: Annotated[
        bool | None,
        typer.Option(
            "--memory-efficient/--both-paths",
            show_default=False,
            help="normlab's backward from the saved output, or from both. Default: from the saved input.",
        ),
    ] = None,
    json_file: JsonFile = None,
    plot: Plot = None,
) -> None:
    """Measure each kernel's speed as a fraction of a copy's. Every contender is checked before it is timed.

    A list has commas between its entries, or the option is given again. Exit code: 0, or 2 when the arguments cannot be
    used or there is no GPU.
    """
    from normlab.bench import choices, commands, problem
    from normlab.bench.machine import NotFitError

    with refusing("bench norm", NotFitError):
        if memory_efficient is not None and direction == "forward":
            given = "--memory-efficient" if memory_efficient else "--both-paths"
            raise ValueError(f"{given} is for the backward, not for --direction forward")
        wanted = problem.problems(
            choices.one_or_both("--norm", norm, problem.NORMS),
            choices.one_or_both("--direction", direction, problem.DIRECTIONS),
            choices.some("--dtype", dtype, choices.DTYPES, choices.DEFAULT_DTYPES),
            choices.counts("--n1", n1),
            choices.counts("--n2", n2) or list(problem.WIDTHS),
            choices.count("--elements", elements),
        )
        compete = partial(commands.norm, wanted, choices.peers(peers), PATHS[memory_efficient])
        measured(compete, len(wanted), direction, json_file, plot)
