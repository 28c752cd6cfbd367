"""`normlab trace`."""

from pathlib import Path
from typing import Annotated

import typer

from normlab.cli.completion import ladder_steps
from normlab.cli.errors import refusing
from normlab.cli.options import DType, Norm
from normlab.cli.terminal import console
from normlab.cli.waiting import announce, duration, progress

LONGEST = 86_400.0  # seconds; more is taken for a slip of the user's


def trace_ladder(
    name: Annotated[
        str,
        typer.Argument(
            metavar="LADDER|LADDER/STEP",
            autocompletion=ladder_steps,
            help="forward, backward, sgemm or family, or one of its steps: forward/apex, family/batch_backward.",
        ),
    ],
    shape: Annotated[
        str | None,
        typer.Option(
            metavar="N1xN2",
            show_default=False,
            help="Rows and columns, 8x256; of sgemm MxNxK, 128x128x32; of the family NxCxHxW, 2x8x16x16.",
        ),
    ] = None,
    dtype: Annotated[DType, typer.Option(help="Of input and parameters.")] = DType.FLOAT32,
    norm: Annotated[Norm, typer.Option(help="Which norm.")] = Norm.LAYER,
    recompute: Annotated[bool, typer.Option("--recompute", help="The backward from the saved output.")] = False,
    channels_last: Annotated[bool, typer.Option("--channels-last", help="The family's images.")] = False,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False, help="Write a step's report as a standalone page, too."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
) -> None:
    """A ladder's X-ray: requests, sectors, bank conflicts, barriers, ... of every step, in Nsight Compute's words.

    LADDER/STEP shows one step line by line. Exit code: 0, or 2 when the arguments cannot be used.
    """
    from normlab.learn import xray

    with refusing("trace"):
        ladder, steps = xray.steps_of(name)
        problem = xray.problem_of(ladder, shape, dtype.value, norm is Norm.RMS, recompute, channels_last)
        if html is not None and len(steps) > 1:
            raise ValueError(f"--html writes one step's report: give one, such as {ladder}/{steps[0].name}")
        if (seconds := problem.seconds(steps)) > LONGEST:
            raise ValueError(
                f"{shape or name} takes about {duration(seconds)}, more than a day; a smaller --shape takes less"
            )
        announce(seconds, "a smaller --shape takes")
        with progress(len(steps)) as advance:
            results = []
            for step in steps:
                results.append(problem.trace(step))
                advance()
        pages = xray.save(results[0], html) if html is not None else []
    if as_json:
        typer.echo(xray.as_json(problem, results))
    else:
        xray.show(problem, results, console(), by_line="/" in name)
    for page in pages:
        typer.echo(f"wrote {page}", err=True)
