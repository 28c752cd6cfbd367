"""Options that several subcommands have."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


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


JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", show_default=False, help="Write the record, too.")
]
Plot = Annotated[Path | None, typer.Option(metavar="FILE", show_default=False, help="Draw it: a .svg, .png or .pdf.")]
