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


# The values of arguments that are left out. That of an argument that is not here is None.
LEFT_OUT = {"norm": "layer", "saved": "input", "weight": True, "groups": 1, "channels_last": False}


def refuse(what: str, **given: object) -> None:
    """Raise ValueError if an argument is given that `what`, such as the sgemm ladder, does not take."""
    for name, value in given.items():
        if value != LEFT_OUT.get(name):
            raise ValueError(f"the {what} does not take {name}, got {name}={value}")
