"""Choose whether kernels on host arrays run on a GPU or in the simulator."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

from numba import cuda

WORLDS = ("auto", "gpu", "simulator")
_world: ContextVar[str] = ContextVar("normlab_world", default="auto")
_schedule: ContextVar[str | int] = ContextVar("normlab_schedule", default="forward")


@cache
def gpu_available() -> bool:
    """Return True if there is a CUDA driver with at least one GPU. The process asks only once."""
    return bool(cuda.is_available())


@contextmanager
def using(world: str, schedule: str | int = "forward") -> Iterator[None]:
    """Choose where kernels on host arrays run, for the length of a `with` block.

    Args:
        world: "gpu", "simulator", or "auto": the GPU if there is one, else the simulator.
        schedule: the order in which the simulator runs blocks, warps and lanes: "forward", "reverse" or a seed.

    Raises:
        ValueError: `world` is unknown.
        RuntimeError: `world` is "gpu", but the machine has no GPU.
    """
    if world not in WORLDS:
        raise ValueError(f"unknown engine {world!r}: choose one of {', '.join(WORLDS)}")
    if world == "gpu" and not gpu_available():
        raise RuntimeError("the engine 'gpu' needs an NVIDIA GPU and its driver; none was found here. Use 'simulator'.")
    tokens = _world.set(world), _schedule.set(schedule)
    try:
        yield
    finally:
        _world.reset(tokens[0])
        _schedule.reset(tokens[1])


def use_gpu() -> bool:
    """Return True if a kernel on host arrays would run on a GPU now."""
    return _world.get() == "gpu" or (_world.get() == "auto" and gpu_available())


def schedule() -> str | int:
    """Return the order in which the simulator runs blocks, warps and lanes now."""
    return _schedule.get()
