"""Measure bytes and time of a model's training steps with each variant of its norms: `normlab memory`.

The variants are torch.nn's norms, normlab's with each of three values of memory_efficient, and the last of them with
the residual additions in the norms' calls (`variants.py`). One
model serves all variants, on the same batch; a `Switch` exchanges its norms. First each variant trains alone from the
same initial parameters, so that the peak of memory is this variant's. Then the variants take turns, a step each, so
that a drift of the machine's speed slows all of them alike.
"""

import gc
import os
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from normlab import engine
from normlab.measure.provenance import provenance
from normlab.measure.timing import spread
from normlab.studies.memory import prediction, text
from normlab.studies.memory.model import Decoder, Shape
from normlab.studies.memory.saved import counting
from normlab.studies.memory.threads import threads
from normlab.studies.memory.variants import MEASURED, TORCH, Switch

SMALL = Shape(layers=4, hidden=256, batch=2, sequence=256, norm="rms", dtype="bfloat16")
SEED = 0
RATE = 10.0  # SGD's learning rate times the model's hidden: wider models take shorter steps
BASE = "False"  # the variant with whose times all times are compared: normlab's norms with the input saved
ADVANCES = len(MEASURED) + 1  # calls of `advance`: one after each variant alone, one after all turns
METHOD = (
    "One model and one batch for all variants; SGD, parameters in the dtype named. Saved: storages that autograd keeps "
    "for the backward, parameters and batch excluded. Peak: torch.cuda.max_memory_allocated over the steps after the "
    "first. Time of a step (forward, backward, SGD): variants take turns, a round to warm up; median and quartiles; "
    "by CUDA events on a GPU, by the clock on a CPU."
)


class CapacityError(ValueError):
    """The model does not fit into this machine's memory."""


def device() -> str:
    """Return where models run: "cuda" if there is a GPU that both PyTorch and normlab can use, else "cpu"."""
    return "cuda" if torch.cuda.is_available() and engine.gpu_available() else "cpu"


def shape(device: str, norm: str, dtype: str, **sizes: int | None) -> Shape:
    """Return the `Shape` of a model with the given layers, hidden, batch and sequence; None takes the device's default.

    The defaults are LLaMA-7B's sizes on a GPU, and SMALL's on a CPU.

    Raises:
        ValueError: an odd hidden.
    """
    usual = prediction.LLAMA if device == "cuda" else SMALL
    given = {name: size for name, size in sizes.items() if size is not None}
    chosen = usual._replace(norm=norm, dtype=dtype, **given)
    chosen.check()
    return chosen


def seconds(shape: Shape, steps: int, device: str) -> float:
    """Return about how long `run` takes on a CPU; 0 for a GPU, where it is short.

    Each variant takes `steps` steps alone and `steps` + 1 in turns.
    """
    return shape.seconds * len(MEASURED) * (2 * steps + 1) if device == "cpu" else 0.0


class Bench:
    """A model, its norms' switch, its batch and its optimizer."""

    def __init__(self, shape: Shape, device: str) -> None:
        self.shape, self.device = shape, device
        self.model = Decoder(shape, device)
        self.switch = Switch(self.model)
        self.batch = text.read(None).batch(shape.batch, shape.sequence, device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE / shape.hidden)

    def step(self) -> Tensor:
        """Take one training step, and return the loss before it."""
        self.optimizer.zero_grad()
        loss = self.model(*self.batch)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def alone(self, variant: str, steps: int) -> dict[str, Any]:
        """Train one variant from the initial parameters; return its bytes saved and predicted, its peak and its losses.

        `steps`: at least 2. The first step counts the bytes saved; the peak is measured over the later steps.
        """
        self.switch(variant)
        self.model.reset(SEED)
        with counting([*self.model.parameters(), *self.batch]) as saved:
            loss = self.model(*self.batch)
        losses = [loss.detach()]
        loss.backward()
        self.optimizer.step()
        # Free the first step's graph: the peak is measured from what is allocated when its counter is reset.
        del loss
        gc.collect()
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        losses += [self.step() for _ in range(steps - 1)]
        peak = torch.cuda.max_memory_allocated() if self.device == "cuda" else None
        return {
            "saved_bytes": sum(saved.values()),
            "predicted_bytes": prediction.total(self.shape, variant, self.device),
            "peak_bytes": peak,
            "losses": [loss.item() for loss in losses],
        }

    def timed(self, variant: str) -> float:
        """Return the seconds of one step of `variant`, from the parameters as they are."""
        self.switch(variant)
        if self.device == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            self.step()
            end.record()
            end.synchronize()
            return 1e-3 * begin.elapsed_time(end)
        began = time.perf_counter()
        self.step()
        return time.perf_counter() - began


def run(shape: Shape, steps: int, device: str, advance: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Return the record of `normlab memory`; `advance`, for a progress bar, is called ADVANCES times.

    Raises:
        CapacityError: the model does not fit.
    """
    try:
        with threads(shape):
            used = torch.get_num_threads()
            rows, rounds = _rows(shape, steps, device, advance)
    except torch.cuda.OutOfMemoryError as error:
        raise CapacityError(f"{error}".splitlines()[0]) from None
    for row in rows:
        times = [one[row["variant"]] for one in rounds]
        # A ratio within each round: between two rounds the machine's speed may have changed.
        against = spread([one[row["variant"]] / one[BASE] for one in rounds]).median
        row |= {"step": spread(times).as_dict(), "step_against_saved_input": round(against, 4)}
    return {
        "what": "memory",
        **provenance(),
        "device": device,
        "threads": used,
        "method": METHOD,
        **shape._asdict(),
        "heads": shape.heads,
        "inner": shape.inner,
        "parameters": shape.parameters,
        "steps": steps,
        "text": text.read(None).described(),
        "rows": rows,
        "predicted": predicted(shape),
    }


def predicted(like: Shape) -> dict[str, Any]:
    """Return the bytes by role that LLaMA-7B saves on a GPU in each variant, with the norm and the dtype of `like`."""
    large = prediction.LLAMA._replace(norm=like.norm, dtype=like.dtype)
    rows = [{"variant": variant, **prediction.saved(large, variant, "cuda")} for variant in MEASURED]
    return {**large._asdict(), "rows": rows}


def check_fits(shape: Shape, device: str) -> None:
    """Raise CapacityError if a step needs more than the GPU's free memory, or than the host's memory for a CPU."""
    if device == "cuda":
        there = torch.cuda.mem_get_info()[0]
    else:
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    needed = prediction.peak(shape, device)
    if needed > there:
        raise CapacityError(
            f"needs {needed / 1e9:,.1f} GB at least, and {device} has {there / 1e9:,.1f} GB: "
            "give a smaller --layers, --hidden, --batch or --sequence"
        )


def _rows(
    shape: Shape, steps: int, device: str, advance: Callable[[], None]
) -> tuple[list[dict[str, Any]], list[dict[str, float]]]:
    """Return a row per variant from its steps alone, and a dict from variant to seconds per round of turns.

    There are `steps` + 1 rounds; the first one warms up and is left out. Every second round takes the variants in
    reverse, so that no variant always runs after the same one.
    """
    bench, rows = Bench(shape, device), []
    for variant in MEASURED:
        rows.append({"variant": variant, **bench.alone(variant, steps)})
        advance()
    reference = next(row for row in rows if row["variant"] == TORCH)["losses"]
    for row in rows:
        row["largest_difference"] = max(abs(a - b) for a, b in zip(row["losses"], reference, strict=True))
    rounds = []
    for number in range(steps + 1):
        order = MEASURED if number % 2 else MEASURED[::-1]
        rounds.append({variant: bench.timed(variant) for variant in order})
    advance()
    return rows, rounds[1:]
