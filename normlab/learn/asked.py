"""Find the step that `explain` is asked about, and refuse arguments that its ladder does not take."""

from typing import Any

from normlab.kernels import add_norm, gated_norm, modulated_norm
from normlab.kernels.problem import one_of


def step_with(extras: dict[str, Any], ladder: str, step: str | None) -> Any:
    """Return what does a norm with extras; raise ValueError for another ladder, or for a step of a ladder."""
    named = " and ".join(f"{name}={value!r}" for name, value in extras.items())
    one_of(f"ladder with {named}", ladder, ("forward", "backward"))
    if step is not None:
        raise ValueError(f"a norm with {named} has no steps to choose from, got step={step!r}")
    kernels = gated_norm if "gate" in extras else modulated_norm if "samples" in extras else add_norm
    return {"forward": kernels.FORWARD, "backward": kernels.BACKWARD}[ladder]


def refuse(ladder: str, **sizes: object) -> None:
    """Raise ValueError if an argument is given that the ladder does not take."""
    for name, size in sizes.items():
        if size is not None:
            raise ValueError(f"the {ladder} ladder does not take {name}, got {name}={size}")
