"""Compute what a launch occupies of a multiprocessor: registers, shared memory, warps that fit at once."""

from typing import Any

import numpy as np

from normlab import engine
from normlab.bench.ladder import Launch


def of_launch(launch: Launch, cc: tuple[int, int] | None = None) -> dict[str, Any]:
    """Return registers and local bytes per thread, shared bytes per block, resident blocks, and the share of warps.

    `cc`: compute capability; None: that of the GPU in the machine. Blocks and share are None for a capability whose
    limits the engine does not know.
    """
    if cc is None:
        import torch

        cc = torch.cuda.get_device_capability()
    used = engine.resources(launch.kernel, tuple(map(_type, launch.arguments)), cc)
    shared_bytes = used.shared_bytes + launch.options.get("shared_bytes", 0)
    try:
        fits = engine.occupancy(used.registers, shared_bytes, launch.threads, cc)
    except ValueError:
        fits = None
    return {
        "registers": used.registers,
        "local_bytes": used.local_bytes,
        "shared_bytes": shared_bytes,
        "blocks_per_multiprocessor": fits and fits.blocks,
        "occupancy": fits and round(fits.fraction, 4),
    }


def _type(argument: Any) -> Any:
    """Return an argument as `engine.resources` takes it: None, a dtype, or (dtype, dimensions)."""
    if argument is None:
        return None
    if hasattr(argument, "shape") and argument.shape != ():
        return argument.dtype, len(argument.shape)
    return np.asarray(argument).dtype
