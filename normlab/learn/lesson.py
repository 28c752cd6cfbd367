"""What a tutorial needs beside the stages: where it runs, how long a call took there, and on what line a word stands.

Used by the notebooks in tutorials/ (their first lines call `begin`); knows no kernel of its own.
"""

import inspect
import os
import re
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from normlab import engine
from normlab.kernels import BEST, LADDERS, ForwardStep, Step
from normlab.measure.files import record
from normlab.measure.provenance import ask_nvidia_smi
from normlab.measure.timing import EventTimer


def where() -> str:
    """Return two or three sentences: what kernels run on here, and what their times are worth."""
    if engine.use_gpu():
        return f"Kernels run on a GPU ({gpu_name()}). Times are the GPU's own."
    return (
        f"No GPU is used here: kernels run in normlab's simulator, on a CPU with {os.cpu_count()} cores.\n"
        "Results and counts are those of a GPU.\n"
        "Times say how long the simulator took, and nothing about a GPU."
    )


def gpu_name() -> str:
    """Return the first GPU's name; "unknown" where nvidia-smi does not tell."""
    return ask_nvidia_smi("name") or "unknown"


def begin() -> None:
    """Say where the notebook runs, and let its pictures be SVG, whose text stays sharp at every size."""
    import matplotlib as mpl

    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "normlab", "figure.figsize": (8, 3.6)})
    if "IPython" in sys.modules and (session := sys.modules["IPython"].get_ipython()) is not None:
        session.run_line_magic("matplotlib", "inline")
        session.run_line_magic("config", "InlineBackend.figure_formats = ['svg']")
        session.run_line_magic(
            "config", "InlineBackend.print_figure_kwargs = {'bbox_inches': 'tight', 'metadata': {'Date': None}}"
        )
    print(where())


@dataclass(frozen=True)
class Timing:
    """Seconds of a call, and whose they are."""

    seconds: float
    on: str

    def __str__(self) -> str:
        """Return the time in a unit that fits, and the machine."""
        unit, factor = next(
            (unit, factor) for unit, factor in (("s", 1), ("ms", 1e3), ("µs", 1e6)) if self.seconds * factor >= 1
        )  # fmt: skip
        return f"{self.seconds * factor:.3g} {unit} {self.on}"


def timed(call: Callable[[], Any]) -> Timing:
    """Return how long `call`, which launches kernels, takes: on a GPU by events (needs PyTorch), else by the clock.

    On a GPU its arrays should lie in GPU memory already (`on_device`), because their copies would be timed, too.
    """
    if engine.use_gpu():
        return Timing(EventTimer()(call).median, f"on {gpu_name()}")
    began = time.perf_counter()
    call()
    return Timing(max(1e-6, time.perf_counter() - began), "in the simulator (no measure of a GPU)")


def on_device(*arrays: Any) -> list[Any]:
    """Return the arrays where kernels run: copies in the GPU's memory if it is used, else the arrays themselves."""
    return [engine.to_device(array) if engine.use_gpu() else array for array in arrays]


def line(function: Any, text: str) -> int:
    """Return the number of the first line of a kernel or device function that contains `text`, as `trace` counts lines.

    Raises ValueError where there is no such line.

    >>> from normlab.stages import welford_step
    >>> line(welford_step, "def welford_step") < line(welford_step, "delta / count")
    True
    """
    source, first = inspect.getsourcelines(getattr(function, "py_func", function))
    for number, row in enumerate(source, start=max(first, 1)):
        if text in row:
            return number
    raise ValueError(f"no line of {getattr(function, '__name__', function)!r} contains {text!r}")


def source(function: Any) -> str:
    """Return the source of a kernel or a device function, to be printed."""
    return textwrap.dedent(inspect.getsource(getattr(function, "py_func", function))).rstrip()


def draw_counts(traces: dict[str, Any], metrics: dict[str, str]) -> None:
    """Draw counts of several traces: a panel for each metric, under the words that `metrics` gives, a bar a trace."""
    import matplotlib.pyplot as plt

    size = 4 * len(metrics), 1 + 0.3 * len(traces)
    _, axes = plt.subplots(1, len(metrics), figsize=size, layout="constrained", sharey=True, squeeze=False)
    for ax, (name, words) in zip(axes[0], metrics.items(), strict=True):
        values = [trace.metrics[name] for trace in traces.values()]
        ax.bar_label(ax.barh(list(traces), values, color="#1b4f8a"), fmt="{:,.0f}", padding=3, fontsize=9)
        ax.set(title=words, xticks=[], xlim=(0, 1.25 * max(1, *values)))
    axes[0, 0].invert_yaxis()
    plt.show()


def ladder(direction: str) -> dict[str, float]:
    """Return what each step of a norm's ladder reached on an H200 in bfloat16, n2 = 4096: fractions of a copy's speed.

    They come from the record of `normlab bench ladder`, in the ladder's order.

    >>> list(ladder("backward"))
    ['global_atomics', 'apex', 'fused', 'pipelined']
    """
    steps = {entry["step"]: entry["of_copy"] for entry in record(f"ladder_{direction}_h200")["steps"]}
    return {step.name: steps[step.name] for step in LADDERS[direction]}


def measured(step: Step) -> tuple[float, float] | None:
    """Return what a step reached on an H200 at n2 = 4096, LayerNorm in bfloat16 and float32; None if it is not known.

    Both are fractions of a copy's bandwidth (`normlab.kernels.forward` says how). Those of the best step come from the
    records of `normlab bench norm`. Other steps have theirs in bfloat16 from the record of `normlab bench ladder`, and
    in float32 from their own files.

    >>> from normlab.kernels import LADDERS
    >>> measured(LADDERS["forward"][0])
    (0.0414, 0.08)
    """
    direction = "forward" if isinstance(step, ForwardStep) else "backward"
    if step.name == BEST[direction]:
        return recorded("layer", direction, 4096, "bfloat16"), recorded("layer", direction, 4096, "float32")
    number = [one.name for one in LADDERS[direction]].index(step.name)
    text = sys.modules[f"normlab.kernels.{direction}.step_{number}_{step.name}"].__doc__ or ""
    found = re.search(r"^Measured: (\d\.\d+) / (\d\.\d+)", text, re.MULTILINE)
    if found is None:
        return None
    steps = {entry["step"]: entry for entry in record(f"ladder_{direction}_h200")["steps"]}
    return steps[step.name]["of_copy"], float(found[2])


def recorded(norm: str, direction: str, n2: int, dtype: str, contender: str = "normlab") -> float:
    """Return the fraction of a copy's bandwidth that a contender reached on an H200, as `normlab bench norm` found it.

    Raises KeyError or StopIteration for what has not been measured.
    """
    wanted = (norm, direction, n2)
    row = next(
        row for row in record(f"norm_{dtype}_h200")["rows"] if (row["norm"], row["direction"], row["n2"]) == wanted
    )
    return row["contenders"][contender]["of_copy"]
