"""The X-ray: every step of a ladder, and every norm of the family, traced on one problem. What `normlab trace` shows.

`norms`, `products` and `family` make the data and launch the kernels, `traced` keeps what is counted, `show` prints it.
"""

from typing import Any

from normlab.host.checks import step_of
from normlab.kernels import LADDERS
from normlab.learn.xray.family import FamilyProblem
from normlab.learn.xray.norms import NormProblem
from normlab.learn.xray.products import ProductProblem
from normlab.learn.xray.show import as_json, save, show
from normlab.learn.xray.traced import Problem, StepTrace

__all__ = [
    "FamilyProblem",
    "NormProblem",
    "Problem",
    "ProductProblem",
    "StepTrace",
    "as_json",
    "problem_of",
    "save",
    "show",
    "steps_of",
]

SHAPES = {"sgemm": ("M x N x K", "128x128x32", 3), "family": ("N x C x H x W", "2x8x16x16", 4)}
ROWS = ("rows x columns", "8x256", 2)  # of any other ladder


def steps_of(name: str) -> tuple[str, list[Any]]:
    """Return ladder and steps that "LADDER" or "LADDER/STEP" names; raises ValueError for one that is not there."""
    ladder, slash, step = name.partition("/")
    if ladder not in LADDERS:
        raise ValueError(f"unknown ladder {ladder!r}: choose one of {', '.join(LADDERS)}")
    if slash and not step:
        raise ValueError(
            f"{name!r} names no step: {ladder!r} alone means all of them, and {ladder}/{LADDERS[ladder][0].name} one"
        )
    if not step:
        return ladder, list(LADDERS[ladder])
    return ladder, [step_of(ladder, step)]


def problem_of(
    ladder: str,
    shape: str | None,
    dtype: str = "float32",
    rms: bool = False,
    recompute: bool = False,
    channels_last: bool = False,
) -> Problem:
    """Return what a ladder's steps are traced on; shape: "8x256" for norms, None for the ladder's own.

    Raises:
        ValueError: another shape, or an option that the ladder does not have.
    """
    foreign = {
        "--recompute": recompute and ladder != "backward",
        "--norm": rms and ladder not in ("forward", "backward"),
        "--dtype": dtype != "float32" and ladder == "sgemm",
        "--channels-last": channels_last and ladder != "family",
    }
    whose = {"--recompute": "backward", "--channels-last": "family"}
    for option in (option for option, given in foreign.items() if given):
        owner = f"is for the {whose[option]} ladder, not for" if option in whose else "is no option of"
        raise ValueError(f"{option} {owner} {ladder!r}")
    sides = sides_of(shape, *SHAPES.get(ladder, ROWS))
    if ladder == "sgemm":
        m, n, k = sides
        return ProductProblem(m, n, k)
    if ladder == "family":
        return FamilyProblem(sides, dtype, channels_last)
    n1, n2 = sides
    return NormProblem(ladder, n1, n2, dtype, rms, recompute)


def sides_of(text: str | None, what: str, example: str, count: int) -> tuple[int, ...]:
    """Return the numbers of "8x256", or of the example for None; raises ValueError for anything else."""
    parts = (example if text is None else text).lower().split("x")
    if len(parts) != count or not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        all_of_them = "both" if count == 2 else "each"
        raise ValueError(f"a shape is {what}, such as {example}, {all_of_them} at least 1; got {text!r}")
    return tuple(map(int, parts))
