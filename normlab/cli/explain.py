"""`normlab explain`."""

from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normlab.cli.completion import STEPPED, devices, one_of, steps_of
from normlab.cli.errors import refused, refusing
from normlab.cli.options import DType, Norm
from normlab.cli.terminal import console, plain_table
from normlab.cli.waiting import progress

if TYPE_CHECKING:
    from normlab.learn.explain import Explanation


# The options, in the order of the help.
Ladder = Annotated[
    str, typer.Argument(metavar="LADDER", autocompletion=one_of(*STEPPED), help="forward, backward, sgemm or family.")
]
OfParameters = Annotated[DType | None, typer.Option(show_default=False, help="Of weight, bias and output, if another.")]
Rows = Annotated[int | None, typer.Option(metavar="ROWS", show_default=False, help="Rows, 4096.")]
Columns = Annotated[int | None, typer.Option(metavar="COLUMNS", show_default=False, help="Columns, 4096.")]
Saved = Annotated[
    str,
    typer.Option(
        metavar="input|output", autocompletion=one_of("input", "output"), help="What the backward starts from."
    ),
]
Weight = Annotated[bool, typer.Option("--weight/--no-weight", help="Is there a weight?")]
Bias = Annotated[
    bool | None, typer.Option("--bias/--no-bias", show_default=False, help="Is there a bias? LayerNorm has one.")
]
M = Annotated[int | None, typer.Option(show_default=False, help="Of sgemm, rows of A, 4096.")]
N = Annotated[int | None, typer.Option(show_default=False, help="Of sgemm, columns of B, 4096.")]
K = Annotated[int | None, typer.Option(show_default=False, help="Of sgemm, columns of A, 4096.")]
Shape = Annotated[str | None, typer.Option(metavar="NxCxHxW", show_default=False, help="Of the family, 32x64x56x56.")]
Groups = Annotated[int, typer.Option(help="Of the family's group norm.")]
ChannelsLast = Annotated[bool, typer.Option("--channels-last", help="The family's images.")]
Alignment = Annotated[int, typer.Option(metavar="BYTES", help="All addresses are multiples of it.")]
Residual = Annotated[bool, typer.Option("--residual", help="The norm of x + residual.")]
Gate = Annotated[
    str | None,
    typer.Option(
        metavar="after|before",
        autocompletion=one_of("after", "before"),
        show_default=False,
        help="An RMSNorm with a gate after the norm, or before it.",
    ),
]
Heads = Annotated[
    str | None,
    typer.Option(metavar="HEADSxPLACES", show_default=False, help="Rows are heads in a fused tensor, 32x48."),
]
Samples = Annotated[
    int | None, typer.Option(show_default=False, help="A LayerNorm with a scale and a shift for each sample.")
]
Offset = Annotated[float, typer.Option(help="Of an RMSNorm: gamma is weight + offset.")]
OfDevice = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        autocompletion=devices,
        help="h200, h100, h100-pcie, a100, ...; here: this machine's, or an H200.",
    ),
]
OfStep = Annotated[
    str | None,
    typer.Option(autocompletion=steps_of(*STEPPED), show_default=False, help="Another step than the best one."),
]
Compiled = Annotated[bool, typer.Option("--compile", help="Registers and occupancy: takes seconds.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def explain_plan(
    ladder: Ladder,
    norm: Annotated[Norm, typer.Option(help="Which norm.")] = Norm.LAYER,
    dtype: Annotated[DType, typer.Option(help="Of the input.")] = DType.FLOAT32,
    parameters: OfParameters = None,
    n1: Rows = None,
    n2: Columns = None,
    saved: Saved = "input",
    weight: Weight = True,
    bias: Bias = None,
    m: M = None,
    n: N = None,
    k: K = None,
    shape: Shape = None,
    groups: Groups = 1,
    channels_last: ChannelsLast = False,
    alignment: Alignment = 256,
    residual: Residual = False,
    gate: Gate = None,
    heads: Heads = None,
    samples: Samples = None,
    offset: Offset = 0.0,
    device: OfDevice = "here",
    step: OfStep = None,
    compiled: Compiled = False,
    as_json: AsJson = False,
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
