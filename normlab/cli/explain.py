"""`normlab explain`."""

from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normlab.cli.completion import STEPPED, devices, one_of, steps
from normlab.cli.errors import refused, refusing
from normlab.cli.options import DType, Norm
from normlab.cli.terminal import console, plain_table
from normlab.cli.waiting import progress

if TYPE_CHECKING:
    from normlab.learn.explain import Explanation


def explain_plan(
    ladder: Annotated[
        str,
        typer.Argument(metavar="LADDER", autocompletion=one_of(*STEPPED), help="forward, backward, sgemm or family."),
    ],
    norm: Annotated[Norm, typer.Option(help="Which norm.")] = Norm.LAYER,
    dtype: Annotated[DType, typer.Option(help="Of the input.")] = DType.FLOAT32,
    parameters: Annotated[
        DType | None, typer.Option(show_default=False, help="Of weight, bias and output, if another.")
    ] = None,
    n1: Annotated[int | None, typer.Option(metavar="ROWS", show_default=False, help="Rows, 4096.")] = None,
    n2: Annotated[int | None, typer.Option(metavar="COLUMNS", show_default=False, help="Columns, 4096.")] = None,
    saved: Annotated[
        str,
        typer.Option(
            metavar="input|output", autocompletion=one_of("input", "output"), help="What the backward starts from."
        ),
    ] = "input",
    weight: Annotated[bool, typer.Option("--weight/--no-weight", help="Is there a weight?")] = True,
    bias: Annotated[
        bool | None, typer.Option("--bias/--no-bias", show_default=False, help="Is there a bias? LayerNorm has one.")
    ] = None,
    m: Annotated[int | None, typer.Option(show_default=False, help="Of sgemm, rows of A, 4096.")] = None,
    n: Annotated[int | None, typer.Option(show_default=False, help="Of sgemm, columns of B, 4096.")] = None,
    k: Annotated[int | None, typer.Option(show_default=False, help="Of sgemm, columns of A, 4096.")] = None,
    shape: Annotated[
        str | None, typer.Option(metavar="NxCxHxW", show_default=False, help="Of the family, 32x64x56x56.")
    ] = None,
    groups: Annotated[int, typer.Option(help="Of the family's group norm.")] = 1,
    channels_last: Annotated[bool, typer.Option("--channels-last", help="The family's images.")] = False,
    alignment: Annotated[int, typer.Option(metavar="BYTES", help="All addresses are multiples of it.")] = 256,
    residual: Annotated[bool, typer.Option("--residual", help="The norm of x + residual.")] = False,
    gate: Annotated[
        str | None,
        typer.Option(
            metavar="after|before",
            autocompletion=one_of("after", "before"),
            show_default=False,
            help="An RMSNorm with a gate after the norm, or before it.",
        ),
    ] = None,
    heads: Annotated[
        str | None,
        typer.Option(metavar="HEADSxPLACES", show_default=False, help="Rows are heads in a fused tensor, 32x48."),
    ] = None,
    samples: Annotated[
        int | None, typer.Option(show_default=False, help="A LayerNorm with a scale and a shift for each sample.")
    ] = None,
    offset: Annotated[float, typer.Option(help="Of an RMSNorm: gamma is weight + offset.")] = 0.0,
    device: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            autocompletion=devices,
            help="h200, h100, h100-pcie, a100, ...; here: this machine's, or an H200.",
        ),
    ] = "here",
    step: Annotated[
        str | None, typer.Option(autocompletion=steps, show_default=False, help="Another step than the best one.")
    ] = None,
    compiled: Annotated[bool, typer.Option("--compile", help="Registers and occupancy: takes seconds.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Which kernel runs a norm, on which grid, and why that plan? Without a GPU, too.

    Exit code: 0, or 2 when the arguments cannot be used.
    """
    from normlab.learn.explain import explain

    with refusing("explain"), progress(None, "compiling") if compiled else nullcontext():
        found = explain(
            ladder,
            norm=norm.value,
            dtype=dtype.value,
            n1=n1,
            n2=n2,
            parameters=parameters and parameters.value,
            weight=weight,
            bias=bias,
            saved=saved,
            m=m,
            n=n,
            k=k,
            shape=None if shape is None else sides_of(shape),
            groups=groups,
            channels_last=channels_last,
            alignment=alignment,
            residual=residual,
            gate=gate,
            heads=None if heads is None else heads_of(heads),
            samples=samples,
            offset=offset,
            device=device,
            step=step,
            compiled=compiled,
        )
        compile_now(found)
    if as_json:
        typer.echo(found.as_json())
    else:
        show(found)


def show(found: "Explanation") -> None:
    """Print an explanation: as a table as wide as the terminal, or as whole lines into a pipe."""
    from normlab.measure.tables import print_stripped, room

    screen = console()
    if room(screen) is None:
        typer.echo(str(found))
        return
    table = plain_table()
    table.add_column(style="bold", no_wrap=True)
    for heading, lines in found.facts():
        table.add_row(heading, "\n".join(lines))
    print_stripped(table, screen)


def compile_now(found: Any) -> None:
    """Compile what an explanation asks for, if it does, while the progress bar moves."""
    from normlab.engine.compile.offline import GET_COMPILER, CompilerMissingError

    try:
        _ = found.resources
    except CompilerMissingError as error:
        raise refused("explain", f"--compile: {error}; {GET_COMPILER}") from None


def heads_of(given: str) -> tuple[int, int]:
    """Return heads and places of a text such as 32x48."""
    parts = given.lower().split("x")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() for part in parts):
        raise ValueError(f"heads are HEADS x PLACES, such as 32x48, got {given!r}")
    return int(parts[0]), int(parts[1])


def sides_of(shape: str) -> tuple[int, ...]:
    """Return the sides of a shape such as 32x64x56x56."""
    sides = shape.lower().split("x")
    if not all(side.isascii() and side.isdigit() for side in sides):
        raise ValueError(f"a shape is N x C x H x W, such as 32x64x56x56, got {shape!r}")
    return tuple(map(int, sides))
