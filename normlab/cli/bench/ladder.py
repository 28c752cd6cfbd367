"""`normlab bench ladder`."""

from functools import partial
from typing import Annotated

import typer

from normlab.cli.bench.measured import measured
from normlab.cli.completion import one_of
from normlab.cli.errors import refusing
from normlab.cli.options import DType, JsonFile

SGEMM = "sgemm"


def bench_ladder(
    context: typer.Context,
    ladder: Annotated[
        str,
        typer.Argument(
            metavar="LADDER", autocompletion=one_of("forward", "backward", "sgemm"), help="forward, backward or sgemm."
        ),
    ],
    n2: Annotated[str, typer.Option(metavar="N", help="Columns.")] = "4096",
    norm: Annotated[
        str, typer.Option(metavar="NAME", autocompletion=one_of("layer", "rms"), help="layer or rms.")
    ] = "layer",
    dtype: Annotated[
        str, typer.Option(metavar="NAME", autocompletion=one_of(*DType), help="float16, bfloat16, float32 or float64.")
    ] = "bfloat16",
    elements: Annotated[str, typer.Option(metavar="N", help="Elements of x.")] = "2^27",
    size: Annotated[str, typer.Option(metavar="N|MxNxK", help="Of sgemm's product, beside cuBLAS.")] = "4096",
    json_file: JsonFile = None,
) -> None:
    """What does each idea bring? Every step of a ladder on one problem, the slowest first; sgemm's in their order.

    forward and backward take the options of norms, sgemm takes --size. Exit code: 0, or 2 when the arguments cannot be
    used or there is no GPU.
    """
    from normlab.bench import choices, commands, problem, product
    from normlab.bench.machine import NotFitError

    with refusing("bench ladder", NotFitError):
        choices.one("LADDER", ladder, (*problem.DIRECTIONS, SGEMM))
        for option in ("n2", "norm", "dtype", "elements") if ladder == SGEMM else ("size",):
            source = context.get_parameter_source(option)
            if source is not None and source.name != "DEFAULT":
                raise ValueError(f"--{option} is no option of the {ladder} ladder")
        if ladder == SGEMM:
            multiplied = product.Size(*choices.sizes("--size", size))
            measured(partial(commands.sgemm, multiplied), commands.steps(ladder), ladder, json_file)
            return
        (wanted,) = problem.problems(
            [choices.one("--norm", norm, problem.NORMS)],
            [ladder],
            [choices.one("--dtype", dtype, choices.DTYPES)],
            [],
            [choices.count("--n2", n2)],
            choices.count("--elements", elements),
        )
        measured(partial(commands.ladder, wanted), commands.steps(ladder), ladder, json_file)
