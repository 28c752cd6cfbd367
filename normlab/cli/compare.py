"""`normlab compare`."""

from pathlib import Path
from typing import Annotated

import typer

from normlab.cli.completion import steps_of
from normlab.cli.errors import refusing
from normlab.cli.options import DType, Engine, Norm
from normlab.cli.terminal import console
from normlab.cli.waiting import announce, progress


def compare(
    file: Annotated[
        Path | None,
        typer.Argument(
            show_default=False,
            help="A .npy (an input; the last dimension is normalised) or a .npz (input; weight, bias, grad_output, eps "
            "if you have them). Without it: three layers of a real model that come with normlab.",
        ),
    ] = None,
    norm: Annotated[Norm, typer.Option(help="Which norm.")] = Norm.LAYER,
    dtype: Annotated[DType, typer.Option(help="Round the data to this, and run the kernels in it.")] = DType.FLOAT32,
    rows: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", show_default=False, help="Take the first N rows. Default: all that fit into 10 s."
        ),
    ] = None,
    engine: Annotated[Engine, typer.Option(help="Where kernels run; auto: on the GPU if there is one.")] = Engine.AUTO,
    step: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            autocompletion=steps_of("forward", "backward"),
            show_default=False,
            help="A step of the forward or backward ladder; any other name lists them. Default: on a GPU the last of "
            "each, in the simulator two that it is quick at.",
        ),
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", help="Print a table of errors, bounds and bytes, and why it is so.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Is recomputing from the saved output as good as saving the input? A line for each layer of real data.

    A third way, exact, keeps the output too, and beside it the normalised values of the few columns that it hides.

    Exit code: 0, or 1 when an error exceeds its bound, or 2 when the arguments or the file cannot be used.
    """
    from normlab.studies.compare import PASSES, activations, plan, report, run

    with refusing("compare", activations.InputError):
        chosen = plan.choose(norm.value, dtype.value, engine.value, step)
        sources = activations.bundled() if file is None else [activations.read(file)]
        job = plan.prepare(sources, chosen, rows)
        announce(job.seconds, "a smaller --rows takes")
        with progress(PASSES * len(job.layers)) as advance:
            result = run(job, advance)
    if as_json:
        typer.echo(report.as_json(result))
    elif details:
        report.show(result, console(pipe=report.WIDTH))
    else:
        report.brief(result, console())
    if not result.within_bounds:
        raise typer.Exit(1)
