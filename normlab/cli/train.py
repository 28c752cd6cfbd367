"""`normlab train`."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from normlab.cli.completion import some_of
from normlab.cli.errors import refusing
from normlab.cli.options import DType, JsonFile, Norm, Plot
from normlab.cli.recording import recorded
from normlab.cli.waiting import announce


def train(
    file: Annotated[
        Path | None, typer.Argument(show_default=False, help="A text. Default: normlab's own source.")
    ] = None,
    layers: Annotated[int, typer.Option(min=1, metavar="N", help="Blocks.")] = 2,
    hidden: Annotated[int, typer.Option(min=2, metavar="N", help="Columns of the norms.")] = 64,
    batch: Annotated[int, typer.Option(min=2, metavar="N", help="Passages of text in a step.")] = 8,
    sequence: Annotated[int, typer.Option(min=1, metavar="N", help="Bytes of a passage.")] = 64,
    dtype: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,…", autocompletion=some_of(*DType), show_default=False, help="Default: float32,bfloat16."
        ),
    ] = None,
    norm: Annotated[Norm, typer.Option(help="Which norm.")] = Norm.RMS,
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
    with refusing("train", ImportError):
        from normlab.bench import choices
        from normlab.measure import files, pictures
        from normlab.studies.memory import plots, tables
        from normlab.studies.memory import train as training

        dtypes = choices.some("--dtype", dtype, training.DTYPES, training.DEFAULT_DTYPES)
        pictures.check_suffix(plot)
        sizes = dict(layers=layers, hidden=hidden, batch=batch, sequence=sequence)
        lesson = training.prepare(file, norm.value, dtypes[0], norm_weight, steps, **sizes)
        files.check_writable(json_file, plot)
        announce(lesson.seconds * len(dtypes), "fewer --steps take")
        run, count = partial(training.run, lesson, dtypes), len(lesson.runs) * len(dtypes)
        recorded(run, count, tables.show, plots.draw, json_file, plot)
