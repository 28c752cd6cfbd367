"""Options that several subcommands have."""

from enum import StrEnum


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
