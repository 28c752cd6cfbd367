"""`normlab bench`: norm, family, ladder, host, report."""

import signal
from functools import partial
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from normlab.cli.waiting import progress

bench = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="How fast is it? Beside the peers, on a GPU.")

Peers = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME,…",
        show_default=False,
        help="torch, compile, liger, quack, apex, triton; or none. Default: all. And compile-inference, only if named: "
        "torch.compile's forward without statistics, which is less work than all others do.",
    ),
]
JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", show_default=False, help="Write the record, too.")
]
Plot = Annotated[Path | None, typer.Option(metavar="FILE", show_default=False, help="Draw it: a .svg, .png or .pdf.")]
SGEMM = "sgemm"
PATHS = {None: "saved", True: "recomputed", False: "both"}  # of --memory-efficient/--both-paths


@bench.callback()
def bench_anything() -> None:
    """How fast is it? Beside the peers, on a GPU."""
    # `kill` and `timeout` are answered like Ctrl-C: what has been measured is written and shown.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def _refuse(command: str, error: Exception) -> NoReturn:
    typer.echo(f"normlab bench {command}: {error}", err=True)
    raise typer.Exit(2) from None


def _alike(direction: str) -> str:
    """The ladder that `normlab trace` has for one direction, or first for both."""
    return "forward" if direction == "both" else direction


@bench.command("norm", short_help="Fractions of the copy bandwidth, shape by shape, beside the peers.")
def bench_norm(
    norm: Annotated[str, typer.Option(metavar="NAME", help="layer, rms or both.")] = "both",
    direction: Annotated[str, typer.Option(metavar="NAME", help="forward, backward or both.")] = "both",
    n2: Annotated[
        list[str] | None, typer.Option(metavar="N,…", show_default=False, help="Columns. Default: 768 to 65536.")
    ] = None,
    n1: Annotated[
        list[str] | None, typer.Option(metavar="N,…", show_default=False, help="Rows. Default: --elements over n2.")
    ] = None,
    elements: Annotated[str, typer.Option(metavar="N", help="Elements of x, where --n1 is not given.")] = "2^27",
    dtype: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME,…", show_default=False, help="Default: bfloat16,float16,float32."),
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
    """How close to the speed of a copy does each kernel come? Every contender is checked before it is timed.

    A list has commas between its entries, or the option is given again. Exit code: 0, or 2 when the arguments cannot be
    used or there is no GPU.
    """
    from normlab.bench import choices, commands, machine, plots, problem, records, tables

    try:
        wanted = problem.problems(
            choices.one_or_both("--norm", norm, problem.NORMS),
            choices.one_or_both("--direction", direction, problem.DIRECTIONS),
            choices.some("--dtype", dtype, choices.DTYPES, choices.DEFAULT_DTYPES),
            choices.counts("--n1", n1),
            choices.counts("--n2", n2) or list(problem.WIDTHS),
            choices.count("--elements", elements),
        )
        names = choices.peers(peers)
        if plot is not None:
            plots.check_suffix(plot)
        machine.require_gpu(_alike(direction))
        records.check_writable(json_file, plot)
        with progress(len(wanted)) as advance:
            record = commands.norm(wanted, names, PATHS[memory_efficient], advance)
        if json_file is not None:
            records.write(record, json_file)
        if plot is not None:
            plots.draw([record], plot)
    except (ValueError, OSError, machine.NotFitError) as error:
        _refuse("norm", error)
    tables.show(record)


@bench.command("family", short_help="Batch, instance, group and layer norm beside PyTorch, both layouts.")
def bench_family(
    norm: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME,…", show_default=False, help="Default: batch,instance,group,layer."),
    ] = None,
    direction: Annotated[str, typer.Option(metavar="NAME", help="forward, backward or both.")] = "both",
    dtype: Annotated[
        list[str] | None, typer.Option(metavar="NAME,…", show_default=False, help="Default: float32,bfloat16.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """How close to the speed of a copy do batch, instance, group and layer norm come, and PyTorch's own?

    On images as ResNets have them, channels first and last; layer norm over (C, H, W). Both are checked before
    they are timed. Exit code: 0, or 2 when the arguments cannot be used or there is no GPU.
    """
    from normlab.bench import choices, commands, family, machine, problem, records, tables

    try:
        wanted = family.problems(
            choices.some("--norm", norm, family.NORMS, family.NORMS),
            choices.one_or_both("--direction", direction, problem.DIRECTIONS),
            choices.some("--dtype", dtype, choices.DTYPES, family.DTYPES),
        )
        machine.require_gpu("family")
        records.check_writable(json_file)
        with progress(len(wanted)) as advance:
            record = commands.family(wanted, advance)
        if json_file is not None:
            records.write(record, json_file)
    except (ValueError, OSError, machine.NotFitError) as error:
        _refuse("family", error)
    tables.show(record)


@bench.command("ladder", short_help="Every step of a ladder: speed, registers, occupancy.")
def bench_ladder(
    context: typer.Context,
    ladder: Annotated[str, typer.Argument(metavar="LADDER", help="forward, backward or sgemm.")],
    n2: Annotated[str, typer.Option(metavar="N", help="Columns.")] = "4096",
    norm: Annotated[str, typer.Option(metavar="NAME", help="layer or rms.")] = "layer",
    dtype: Annotated[str, typer.Option(metavar="NAME", help="float16, bfloat16, float32 or float64.")] = "bfloat16",
    elements: Annotated[str, typer.Option(metavar="N", help="Elements of x.")] = "2^27",
    size: Annotated[str, typer.Option(metavar="N|MxNxK", help="Of sgemm's product, beside cuBLAS.")] = "4096",
    json_file: JsonFile = None,
) -> None:
    """What does each idea bring? Every step of a ladder on one problem, the slowest first; sgemm's in their order.

    forward and backward take the options of norms, sgemm takes --size. Exit code: 0, or 2 when the arguments cannot be
    used or there is no GPU.
    """
    from normlab.bench import choices, commands, machine, problem, product, records, tables

    try:
        choices.one("LADDER", ladder, (*problem.DIRECTIONS, SGEMM))
        for option in ("n2", "norm", "dtype", "elements") if ladder == SGEMM else ("size",):
            source = context.get_parameter_source(option)
            if source is not None and source.name != "DEFAULT":
                raise ValueError(f"--{option} is no option of the {ladder} ladder")
        if ladder == SGEMM:
            multiplied = product.Size(*choices.sizes("--size", size))
            steps, climb = commands.sgemm_steps(), partial(commands.sgemm, multiplied)
        else:
            (wanted,) = problem.problems(
                [choices.one("--norm", norm, problem.NORMS)],
                [ladder],
                [choices.one("--dtype", dtype, choices.DTYPES)],
                [],
                [choices.count("--n2", n2)],
                choices.count("--elements", elements),
            )
            steps, climb = commands.steps(wanted), partial(commands.ladder, wanted)
        machine.require_gpu(ladder)
        records.check_writable(json_file)
        with progress(steps) as advance:
            record = climb(advance)
        if json_file is not None:
            records.write(record, json_file)
    except (ValueError, OSError, machine.NotFitError) as error:
        _refuse("ladder", error)
    tables.show(record)


@bench.command("host", short_help="A call's cost on the host: eager, in a CUDA graph, the first of a process.")
def bench_host(
    norm: Annotated[str, typer.Option(metavar="NAME", help="layer, rms or both.")] = "both",
    direction: Annotated[str, typer.Option(metavar="NAME", help="forward, backward or both.")] = "forward",
    peers: Peers = None,
    json_file: JsonFile = None,
) -> None:
    """What does a call cost on the host, with 8 x 4096 bfloat16 elements to do on the GPU?

    Exit code: 0, or 2 when the arguments cannot be used or there is no GPU.
    """
    from normlab.bench import choices, commands, machine, problem, records, tables

    try:
        norms = choices.one_or_both("--norm", norm, problem.NORMS)
        directions = choices.one_or_both("--direction", direction, problem.DIRECTIONS)
        names = choices.peers(peers)
        machine.require_gpu(_alike(direction))
        records.check_writable(json_file)
        record = commands.host(norms, directions, names)
        if json_file is not None:
            records.write(record, json_file)
    except (ValueError, OSError, machine.NotFitError) as error:
        _refuse("host", error)
    tables.show(record)


@bench.command("report", short_help="The README's tables and its plot, from the records.")
def bench_report(
    chosen: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECORD…", show_default=False, help="Files, or names in normlab/bench/records. Default: all there."
        ),
    ] = None,
    readme: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False, help="Put the tables between the markers of this file."),
    ] = None,
    plot: Plot = None,
) -> None:
    """The records' tables as Markdown; needs no GPU.

    Exit code: 0, or 2 when a record or the README cannot be used.
    """
    from normlab.bench import plots, records
    from normlab.bench.readme import benchmarks, insert

    try:
        found = records.load(chosen or [])
        if plot is not None:
            plots.draw(found, plot)
        text = benchmarks(found)
        if readme is not None:
            insert(readme, text)
    except (ValueError, OSError) as error:
        _refuse("report", error)
    if readme is None:
        typer.echo(text)
