"""Find the step that `explain` is asked about, and refuse arguments that its ladder does not take."""

from typing import Any

from normlab.kernels import BEST, LADDERS, add_norm
from normlab.kernels.problem import one_of


def step_of(ladder: str, step: str | None) -> Any:
    """Return the step of a ladder by its name, or the best one for None; raise ValueError if there is none."""
    wanted = BEST.get(ladder, "batch") if step is None else step
    one_of(f"step of the {ladder} ladder", wanted, [known.name for known in LADDERS[ladder]])
    return next(known for known in LADDERS[ladder] if known.name == wanted)


def step_of_sum(ladder: str, step: str | None) -> Any:
    """Return what does a norm of x + residual; raise ValueError for another ladder, or for a step of a ladder."""
    one_of("ladder with residual=True", ladder, ("forward", "backward"))
    if step is not None:
        raise ValueError(f"a norm of x + residual has no steps to choose from, got step={step!r}")
    return {"forward": add_norm.FORWARD, "backward": add_norm.BACKWARD}[ladder]


def refuse(ladder: str, **sizes: object) -> None:
    """Raise ValueError if an argument is given that the ladder does not take."""
    for name, size in sizes.items():
        if size is not None:
            raise ValueError(f"the {ladder} ladder does not take {name}, got {name}={size}")
