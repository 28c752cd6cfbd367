"""`normlab memory` and `normlab train`."""

import math
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from normlab.cli.options import DType, Norm
from normlab.cli.waiting import PATIENCE, duration, progress

JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", show_default=False, help="Write the record, too.")
]
Plot = Annotated[Path | None, typer.Option(metavar="FILE", show_default=False, help="Draw it: a .svg, .png or .pdf.")]
NormOption = Annotated[Norm, typer.Option(help="Which norm.")]


def _number(text: str) -> typer.models.OptionInfo:
    return typer.Option(min=1, metavar="N", show_default=False, help=text)


def _refuse(command: str, error: Exception) -> NoReturn:
    typer.echo(f"normlab {command}: {error}", err=True)
    raise typer.Exit(2) from None


def memory(
    layers: Annotated[int | None, _number("Blocks. Default: 32 on a GPU, else 4.")] = None,
    hidden: Annotated[int | None, _number("Columns of the norms. Default: 4096 on a GPU, else 256.")] = None,
    batch: Annotated[int | None, _number("Passages of text in a step. Default: 2.")] = None,
    sequence: Annotated[int | None, _number("Bytes of a passage. Default: 2048 on a GPU, else 256.")] = None,
    dtype: Annotated[DType, typer.Option(help="Of parameters and activations.")] = DType.BFLOAT16,
    norm: NormOption = Norm.RMS,
    steps: Annotated[int, typer.Option(min=2, metavar="N", help="Steps of each kind, alone and in turns.")] = 5,
    json_file: JsonFile = None,
    plot: Plot = None,
) -> None:
    """What does saving the norms' outputs free? A LLaMA-shaped model, trained for some steps with each kind of norm.

    torch.nn's norms, and normlab.nn's with memory_efficient False, True and "exact": bytes saved for the backward, peak
    memory, time of a step, losses. On the GPU if there is one, with the size of LLaMA-7B; else on the CPU, small, and
    the bytes of LLaMA-7B are predicted.

    Exit code: 0, or 2 when the arguments cannot be used or the model does not fit.
    """
    try:
        from normlab.bench import plots as bench_plots
        from normlab.bench import records
        from normlab.studies.memory import measure, plots, tables

        if plot is not None:
            bench_plots.check_suffix(plot)
        device = measure.device()
        sizes = dict(layers=layers, hidden=hidden, batch=batch, sequence=sequence)
        shape = measure.shape(device, norm.value, dtype.value, **sizes)
        measure.check_room(shape, device)
        records.check_writable(json_file, plot)
        if (seconds := measure.seconds(shape, steps, device)) > PATIENCE:
            typer.echo(f"this takes about {duration(seconds)}; fewer or smaller --layers take less", err=True)
        with progress(measure.ADVANCES) as advance:
            record = measure.run(shape, steps, device, advance)
        if json_file is not None:
            records.write(record, json_file)
        if plot is not None:
            plots.draw(record, plot)
    except (ValueError, OSError, ImportError) as error:
        _refuse("memory", error)
    tables.show(record)


def train(
    file: Annotated[
        Path | None, typer.Argument(show_default=False, help="A text. Default: normlab's own source.")
    ] = None,
    layers: Annotated[int, typer.Option(min=1, metavar="N", help="Blocks.")] = 2,
    hidden: Annotated[int, typer.Option(min=2, metavar="N", help="Columns of the norms.")] = 64,
    batch: Annotated[int, typer.Option(min=2, metavar="N", help="Passages of text in a step.")] = 8,
    sequence: Annotated[int, typer.Option(min=1, metavar="N", help="Bytes of a passage.")] = 64,
    dtype: Annotated[
        list[str] | None, typer.Option(metavar="NAME,…", show_default=False, help="Default: float32,bfloat16.")
    ] = None,
    norm: NormOption = Norm.RMS,
    norm_weight: Annotated[float, typer.Option(metavar="X", help="The norms' initial weight.")] = 1.0,
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="Steps of training.")] = 200,
    json_file: JsonFile = None,
    plot: Plot = None,
) -> None:
    """Does a model learn the same? A small decoder reads a text, byte by byte, with each kind of norm.

    The losses of torch.nn's norms and of normlab.nn's with memory_efficient False, True and "exact"; beside them, how
    far torch.nn's are from its own when the passages of each batch stand in another order. With --norm-weight 0,
    memory_efficient=True cannot learn.

    Exit code: 0, or 2 when the arguments or the file cannot be used.
    """
    try:
        from normlab.bench import choices, records
        from normlab.bench import plots as bench_plots
        from normlab.studies.memory import measure, plots, tables, text
        from normlab.studies.memory import train as training

        chosen = choices.some("--dtype", dtype, training.DTYPES, training.DEFAULT_DTYPES)
        if not math.isfinite(norm_weight):
            raise ValueError(f"--norm-weight {norm_weight}: a finite number is needed")
        if plot is not None:
            bench_plots.check_suffix(plot)
        device = measure.device()
        sizes = dict(layers=layers, hidden=hidden, batch=batch, sequence=sequence)
        shape = measure.shape(device, norm.value, chosen[0], **sizes)
        measure.check_room(shape, device)
        lesson = training.Lesson(shape, text.read(file, sequence), steps, norm_weight, device)
        records.check_writable(json_file, plot)
        if (seconds := lesson.seconds * len(chosen)) > PATIENCE:
            typer.echo(f"this takes about {duration(seconds)}; fewer --steps take less", err=True)
        with progress(len(lesson.runs) * len(chosen)) as advance:
            record = training.run(lesson, chosen, advance)
        if json_file is not None:
            records.write(record, json_file)
        if plot is not None:
            plots.draw(record, plot)
    except (ValueError, OSError, ImportError) as error:
        _refuse("train", error)
    tables.show(record)
