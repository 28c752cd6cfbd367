"""The command `normlab`. Each subcommand imports what it needs when it runs, so that `normlab --help` is quick."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from normlab import __version__

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

PATIENCE = 20.0  # seconds above which the user is told how long it will take
LONGEST = 86_400.0  # seconds that nobody waits for


class Norm(StrEnum):
    """--norm."""

    LAYER = "layer"
    RMS = "rms"


class DType(StrEnum):
    """--dtype."""

    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"


class Engine(StrEnum):
    """--engine."""

    AUTO = "auto"
    GPU = "gpu"
    SIMULATOR = "simulator"


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"normlab {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """How a GPU normalises: LayerNorm and RMSNorm kernels, measured against the truth, with or without a GPU."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command(short_help="Recompute from the output, or save the input? On real data.")
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
            min=1, metavar="N", show_default=False, help="Take the first N rows. Default: all that fit into 20 s."
        ),
    ] = None,
    engine: Annotated[Engine, typer.Option(help="Where kernels run; auto: on the GPU if there is one.")] = Engine.AUTO,
    step: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default=False,
            help="A step of the forward or backward ladder; any other name lists them. Default: on a GPU the last of "
            "each, in the simulator the quickest.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
) -> None:
    """Is recomputing from the saved output as good as saving the input? Errors, bounds and bytes of both, on real data.

    Exit code: 0, or 1 when an error exceeds its bound, or 2 when the arguments or the file cannot be used.
    """
    from normlab.compare import activations, plan, report, run
    from normlab.compare.workers import WorkerLostError

    try:
        chosen = plan.choose(norm.value, dtype.value, engine.value, step)
        sources = activations.bundled() if file is None else [activations.read(file)]
        job = plan.prepare(sources, chosen, rows)
        if job.seconds > PATIENCE:
            typer.echo(f"this takes about {job.seconds / 60:.1f} minutes; a smaller --rows takes less", err=True)
        with _progress(3 * len(job.layers)) as advance:
            result = run(job, advance)
    except (activations.InputError, WorkerLostError) as error:
        typer.echo(f"normlab compare: {error}", err=True)
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(report.as_json(result))
    else:
        from rich.console import Console

        report.show(result, Console())
    if not result.within_bounds:
        raise typer.Exit(1)


@app.command("trace", short_help="What does each kernel ask of memory? Line by line, without a GPU.")
def trace_ladder(
    name: Annotated[
        str, typer.Argument(metavar="LADDER[/STEP]", help="forward or backward, or one of its steps: forward/apex.")
    ],
    shape: Annotated[str, typer.Option(metavar="N1xN2", help="Rows and columns.")] = "8x256",
    dtype: Annotated[DType, typer.Option(help="Of input and parameters.")] = DType.FLOAT32,
    norm: Annotated[Norm, typer.Option(help="Which norm.")] = Norm.LAYER,
    recompute: Annotated[bool, typer.Option("--recompute", help="The backward from the saved output.")] = False,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False, help="Write a step's report as a standalone page, too."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
) -> None:
    """A ladder's X-ray: requests, sectors, bank conflicts, barriers, ... of every step, in Nsight Compute's words.

    LADDER/STEP shows one step line by line. Exit code: 0, or 2 when the arguments cannot be used.
    """
    from rich.console import Console

    from normlab import xray

    try:
        ladder, steps = xray.steps_of(name)
        problem = xray.Problem(ladder, *xray.shape_of(shape), dtype.value, norm is Norm.RMS, recompute)
        if recompute and ladder != "backward":
            raise ValueError(f"--recompute is for the backward ladder, not for {ladder!r}")
        if html is not None and len(steps) > 1:
            raise ValueError(f"--html writes one step's report: give one, such as {ladder}/{steps[0].name}")
        if (seconds := problem.seconds(steps)) > LONGEST:
            raise ValueError(f"{shape} takes about {duration(seconds)}, more than a day; a smaller --shape takes less")
        if seconds > PATIENCE:
            typer.echo(f"this takes about {duration(seconds)}; a smaller --shape takes less", err=True)
        with _progress(len(steps)) as advance:
            results = []
            for step in steps:
                results.append(problem.trace(step))
                advance()
        pages = xray.save(results[0], html) if html is not None else []
    except (ValueError, OSError) as error:
        typer.echo(f"normlab trace: {error}", err=True)
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(xray.as_json(problem, results))
    else:
        xray.show(problem, results, Console(), by_line="/" in name)
    for page in pages:
        typer.echo(f"wrote {page}", err=True)


def _refuse_module(module: str | None) -> None:
    if module is not None:
        typer.echo(f"normlab run: takes a program's file, not -m {module}: give the path of its .py", err=True)
        raise typer.Exit(2)


@app.command(
    "run",
    short_help="Run a numba.cuda program without a GPU.",
    context_settings={"allow_interspersed_args": False},  # what follows the script is the script's
)
def run_script(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="A Python program that uses numba.cuda.")],
    args: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", show_default=False, help="The program's own arguments.")
    ] = None,
    sanitize: Annotated[
        bool,
        typer.Option("--sanitize", help="Look for races, bad indices, reads of garbage, … in every launch."),
    ] = False,
    trace: Annotated[
        bool, typer.Option("--trace", help="Count what the first launch of every kernel asks of memory, line by line.")
    ] = False,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", show_default=False, help="Write the report as JSON, too."),
    ] = None,
    _: Annotated[str | None, typer.Option("-m", hidden=True, is_eager=True, callback=_refuse_module)] = None,
) -> None:
    """Run a program that uses numba.cuda, unmodified: its kernels run in normlab's simulator, with a GPU or without.

    Launches, device arrays, streams, events, reductions, vectorize and random numbers behave as Numba's; the device
    calls itself an H200. Times that the program measures are of the simulation. Options of normlab come before SCRIPT.

    --sanitize and --trace report on stderr when the program has ended, kernel by kernel. Launches in processes that
    the program starts are simulated, but not watched. A device array that is allocated empty and then partly written
    counts as written if its elements are shorter than 4 bytes.

    Exit code: the program's own, as `python SCRIPT` would have it (1 for an uncaught exception, 130 for Ctrl-C), or 1
    when --sanitize found something, whatever the program's: the last report on stderr tells the two apart. 2 when
    normlab cannot use its arguments or read SCRIPT.
    """
    from normlab.run import run_program

    if json_file is not None and not (sanitize or trace):
        typer.echo("normlab run: --json writes what --sanitize or --trace report: give one of them, too", err=True)
        raise typer.Exit(2)
    for option in ("--sanitize", "--trace"):
        if option in (args or []):
            typer.echo(
                f"normlab run: {option} after SCRIPT is an argument of the program; normlab's own comes before: "
                f"normlab run {option} {script}",
                err=True,
            )
    try:
        if json_file is not None:
            json_file = json_file.absolute()  # wherever the program goes
            json_file.write_text("")
        code = run_program(script, args or [], sanitize, trace, json_file)
    except OSError as error:
        typer.echo(f"normlab run: cannot open {error.filename}: {error.strerror}", err=True)
        code = 2
    raise typer.Exit(code)


def duration(seconds: float) -> str:
    """Return seconds as minutes, hours or days."""
    if seconds < 7200:
        return f"{seconds / 60:.1f} minutes"
    return f"{seconds / 3600:.1f} hours" if seconds < 172_800 else f"{seconds / 86_400:,.0f} days"


@contextmanager
def _progress(passes: int) -> Iterator[Callable[[], None]]:
    """A progress bar on a terminal, on stderr; nothing where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("running the kernels", total=passes)
        yield lambda: bar.advance(task)


def main() -> None:
    """The entry point."""
    app()


if __name__ == "__main__":
    main()
