"""Train a small decoder on a text with each of the four variants of its norms: `normlab train`.

All variants start from the same parameters and read the same batches. So their losses can differ only by rounding, or
because a gradient is wrong. Further runs measure how large a difference rounding alone makes: torch.nn trains again
with the passages of every batch in another order, which changes only the order of additions.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from normlab.measure.provenance import provenance
from normlab.studies.memory import measure, text
from normlab.studies.memory.model import Decoder, Shape
from normlab.studies.memory.text import Text
from normlab.studies.memory.threads import threads
from normlab.studies.memory.variants import TORCH, VARIANTS, Switch

SEED = 0
RATE = 3e-3  # AdamW's learning rate
WINDOW = 20  # a smoothed loss is the mean of so many steps
OTHER_ORDERS = 7  # the most further runs of torch.nn: with the passages of each batch rotated by 1, 2, … places
DEFAULT_DTYPES = ("float32", "bfloat16")
# Not float16: AdamW's eps of 1e-8 is 0 there, and so are squares of small gradients without a scaled loss.
DTYPES = (*DEFAULT_DTYPES, "float64")
METHOD = (
    "The same initial parameters and the same batches for all; AdamW, parameters in the dtype named. Difference: the "
    f"largest between two losses, each the mean of {WINDOW} steps, or of all if they are fewer. By rounding alone: "
    "that between torch.nn and torch.nn with the passages of every batch in another order, the largest of all the "
    "orders tried."
)


class Lesson(NamedTuple):
    """A model's shape, the text and the number of steps to train it; norm_weight: the norms' initial weight."""

    shape: Shape
    text: Text
    steps: int
    norm_weight: float
    device: str

    @property
    def runs(self) -> list[tuple[str, int]]:
        """Return (variant, places by which batches are rotated) of each run in one dtype.

        The first is torch.nn with 0 places, with which the others are compared.
        """
        others = range(1, min(self.shape.batch, 1 + OTHER_ORDERS))
        return [*((variant, 0) for variant in VARIANTS), *((TORCH, places) for places in others)]

    @property
    def seconds(self) -> float:
        """Return about how long all runs in one dtype take on a CPU; 0 for a GPU, where they are short."""
        return len(self.runs) * self.steps * self.shape.seconds if self.device == "cpu" else 0.0


def prepare(path: Path | None, norm: str, dtype: str, norm_weight: float, steps: int, **sizes: int) -> Lesson:
    """Return a lesson on the text of the file `path`, or of normlab's own source for None; on a GPU if there is one.

    Raises:
        OSError: no such file.
        ValueError: a weight that is not finite, a text that is too short, or a model that does not fit.
    """
    if not math.isfinite(norm_weight):
        raise ValueError(f"--norm-weight {norm_weight}: a finite number is needed")
    device = measure.device()
    shape = measure.shape(device, norm, dtype, **sizes)
    measure.check_fits(shape, device)
    return Lesson(shape, text.read(path, shape.sequence), steps, norm_weight, device)


def losses(lesson: Lesson, variant: str, turned: int = 0) -> list[float]:
    """Return the loss of every step, with the passages of every batch rotated by `turned` places."""
    shape, random = lesson.shape, torch.Generator().manual_seed(SEED)
    model = Decoder(shape, lesson.device)
    Switch(model)(variant)
    model.reset(SEED, lesson.norm_weight)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    found = []
    for _ in range(lesson.steps):
        batch = lesson.text.batch(shape.batch, shape.sequence, lesson.device, random)
        optimizer.zero_grad()
        loss = model(*(tokens.roll(turned, 0) for tokens in batch))
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return [round(loss.item(), 6) for loss in found]


def smoothed(curve: list[float]) -> np.ndarray:
    """Return the mean of each WINDOW steps in a row, or the mean of all steps if there are fewer.

    >>> smoothed([float(step) for step in range(22)]).tolist()
    [9.5, 10.5, 11.5]
    """
    return np.lib.stride_tricks.sliding_window_view(curve, min(WINDOW, len(curve))).mean(-1)


def difference(curve: list[float], other: list[float]) -> float:
    """Return the largest difference between two curves after smoothing; NaN if one of them has a NaN."""
    return float(np.abs(smoothed(curve) - smoothed(other)).max())


def run(lesson: Lesson, dtypes: list[str], advance: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Return the record of `normlab train`; `advance` is called after each run in each dtype."""
    for dtype in dtypes:  # `prepare` has checked one; minutes of the others' runs would be lost
        measure.check_fits(lesson.shape._replace(dtype=dtype), lesson.device)
    with threads(lesson.shape):
        rows = [row for dtype in dtypes for row in _rows(lesson, dtype, advance)]
    shape = lesson.shape._asdict()
    del shape["dtype"]
    return {
        "what": "train",
        **provenance(),
        "device": lesson.device,
        "method": METHOD,
        **shape,
        "parameters": lesson.shape.parameters,
        "steps": lesson.steps,
        "norm_weight": lesson.norm_weight,
        "text": lesson.text.described(),
        "rows": rows,
    }


def _rows(lesson: Lesson, dtype: str, advance: Callable[[], None]) -> list[dict[str, Any]]:
    """Return an entry for each run in a dtype: its losses, and their difference from torch.nn's."""
    lesson = lesson._replace(shape=lesson.shape._replace(dtype=dtype))
    rows: list[dict[str, Any]] = []
    for variant, turned in lesson.runs:
        curve = losses(lesson, variant, turned)
        off = difference(curve, rows[0]["losses"]) if rows else 0.0
        rows.append({"dtype": dtype, "variant": variant, "turned": turned, "difference": off, "losses": curve})
        advance()
    return rows
