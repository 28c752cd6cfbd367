"""`normlab memory`."""

from functools import partial
from typing import Annotated

import typer

from normlab.cli.errors import refusing
from normlab.cli.options import DType, JsonFile, Norm, Plot
from normlab.cli.recording import recorded
from normlab.cli.waiting import announce


def _number(text: str) -> typer.models.OptionInfo:
    return typer.Option(min=1, metavar="N", show_default=False, help=text)


def memory(
    layers: Annotated[int | None, _number("Blocks. Default: 32 on a GPU, else 4.")] = None,
    hidden: Annotated[int | None, _number("Columns of the norms. Default: 4096 on a GPU, else 256.")] = None,
    batch: Annotated[int | None, _number("Passages of text in a step. Default: 2.")] = None,
    sequence: Annotated[int | None, _number("Bytes of a passage. Default: 2048 on a GPU, else 256.")] = None,
    dtype: Annotated[DType, typer.Option(help="Of parameters and activations.")] = DType.BFLOAT16,
    norm: Annotated[Norm, typer.Option(help="Which norm.")] = Norm.RMS,
    steps: Annotated[int, typer.Option(min=2, metavar="N", help="Steps of each kind, alone and in turns.")] = 5,
    json_file: JsonFile = None,
    plot: Plot = None,
) -> None:
    """What does saving the norms' outputs free? A LLaMA-shaped model, trained for some steps with each kind of norm.

    torch.nn's norms, and normlab.nn's with memory_efficient False, True and "exact", the last also with the residual
    additions in the norms' calls: bytes saved for the backward, peak memory, time of a step, losses. On the GPU if
    there is one, with the size of LLaMA-7B; else on the CPU, small, and the bytes of LLaMA-7B are predicted.

    Exit code: 0, or 2 when the arguments cannot be used or the model does not fit.
    """
    with refusing("memory", ImportError):
        from normlab.measure import files, pictures
        from normlab.studies.memory import measure, plots, tables

        pictures.check_suffix(plot)
        device = measure.device()
        sizes = dict(layers=layers, hidden=hidden, batch=batch, sequence=sequence)
        shape = measure.shape(device, norm.value, dtype.value, **sizes)
        measure.check_fits(shape, device)
        files.check_writable(json_file, plot)
        announce(measure.seconds(shape, steps, device), "fewer or smaller --layers take")
        run = partial(measure.run, shape, steps, device)
        recorded(run, measure.ADVANCES, tables.show, plots.draw, json_file, plot)
