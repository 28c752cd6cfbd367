"""`normlab bench family`."""

from functools import partial
from typing import Annotated

import typer

from normlab.cli.bench.measured import Directions, measured
from normlab.cli.completion import some_of
from normlab.cli.errors import refusing
from normlab.cli.options import DType, JsonFile


def bench_family(
    norm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,…",
            autocompletion=some_of("batch", "instance", "group", "layer"),
            show_default=False,
            help="Default: batch,instance,group,layer.",
        ),
    ] = None,
    direction: Directions = "both",
    dtype: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,…", autocompletion=some_of(*DType), show_default=False, help="Default: float32,bfloat16."
        ),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Measure batch, instance, group and layer norm beside PyTorch's own, as fractions of a copy's speed.

    On images as ResNets have them, channels first and last; layer norm over (C, H, W). Both are checked before
    they are timed. Exit code: 0, or 2 when the arguments cannot be used or there is no GPU.
    """
    from normlab.bench import choices, commands, family, problem
    from normlab.bench.machine import NotFitError

    with refusing("bench family", NotFitError):
        wanted = family.problems(
            choices.some("--norm", norm, family.NORMS, family.NORMS),
            choices.one_or_both("--direction", direction, problem.DIRECTIONS),
            choices.some("--dtype", dtype, choices.DTYPES, family.DTYPES),
        )
        measured(partial(commands.family, wanted), len(wanted), "family", json_file)
