"""Plan a comparison: engine, steps, rows, and about how long it takes.

Called by `normlab.cli` before anything runs. It asks `normlab.engine` for a GPU and `normlab.kernels` for the steps.
"""

from dataclasses import dataclass, replace
from typing import Any

from normlab import engine, oracle
from normlab.host.checks import statistics_dtype, step_of
from normlab.kernels import BEST, LADDERS
from normlab.kernels.exact.chains import with_repairs
from normlab.studies.compare.activations import InputError, Source
from normlab.studies.compare.traffic import Layer, layer_of

SIMULATOR_STEPS = {"forward": "thread_per_row", "backward": "fused"}  # which it is quick at
ORACLE = 2e-6  # seconds an element, value and bound of one pass
BACKWARDS = 3  # from the saved input, recomputed, exact
BUDGET = 10.0  # seconds that a run without --rows may take


@dataclass(frozen=True)
class Plan:
    """Which norm, in which dtype, where ("gpu" or "simulator"), by which steps of the two ladders."""

    norm: str
    dtype: str
    engine: str
    forward: str
    backward: str

    @property
    def rms(self) -> bool:
        """Return True for RMSNorm, which has no mean and no bias."""
        return self.norm == "rms"

    def arithmetic(self, ladder: str, n1: int, n2: int, kept: int = 0) -> oracle.Arithmetic:
        """Return how a ladder's step rounds with so many columns kept: its formats, and the length of its sums."""
        forward: Any = step_of("forward", self.forward)
        backward: Any = step_of("backward", self.backward)
        rows = (forward if ladder == "forward" else backward).row_chains(n2)
        columns = backward.column_chains(n1, n2)
        if kept:
            rows, columns = with_repairs(rows, columns, n1, kept)
        formats: dict[str, Any] = dict.fromkeys(("input", "output", "parameter"), self.dtype)
        formats["accumulator"] = statistics_dtype(self.dtype)
        return oracle.Arithmetic.of(rows, columns, **formats, statistics=forward.statistics)

    def seconds(self, shapes: list[tuple[int, int]]) -> float:
        """Return about how long the passes over layers of (n1, n2) take; on a GPU only the oracle takes time.

        The exact backward is reckoned as one more, which it is with few columns kept; with none it is not run at all,
        with all of them it takes twice as long.
        """
        return sum(
            (1 + BACKWARDS) * ORACLE * n1 * n2
            + self._simulated("forward", n1, n2)
            + BACKWARDS * self._simulated("backward", n1, n2)
            for n1, n2 in shapes
        )

    def _simulated(self, ladder: str, n1: int, n2: int) -> float:
        """Return the seconds that the simulator takes for the step of a ladder; 0 on a GPU."""
        step = step_of(ladder, self.forward if ladder == "forward" else self.backward)
        return step.simulated_seconds(n1, n2) if self.engine == "simulator" else 0.0


def choose(norm: str = "layer", dtype: str = "float32", world: str = "auto", step: str | None = None) -> Plan:
    """Choose engine and steps: `step` on ladders that have it; else on a GPU the best, elsewhere SIMULATOR_STEPS.

    Raises:
        InputError: a step that no ladder has, or "gpu" where there is none.
    """
    try:
        with engine.using(world):
            chosen = "gpu" if engine.use_gpu() else "simulator"
    except RuntimeError as error:
        raise InputError(str(error)) from None
    names = {ladder: [known.name for known in LADDERS[ladder]] for ladder in ("forward", "backward")}
    if step is not None and not any(step in known for known in names.values()):
        known = "; ".join(f"{ladder}: {', '.join(known)}" for ladder, known in names.items())
        raise InputError(f"unknown step {step!r}; known are, {known}")
    default = SIMULATOR_STEPS if chosen == "simulator" else BEST
    steps = {ladder: step if step in known else default[ladder] for ladder, known in names.items()}
    return Plan(norm, dtype, chosen, str(steps["forward"]), str(steps["backward"]))


@dataclass(frozen=True)
class Job:
    """Everything chosen and read, nothing run; about how many `seconds` it takes."""

    layers: list[Layer]
    plan: Plan
    seconds: float


def prepare(sources: list[Source], plan: Plan, rows: int | None = None) -> Job:
    """Take the first `rows` of every source, or as many as fit into the time, and round them to the plan's dtype.

    Raises:
        InputError: NaN or infinity in the data, or values too large for the dtype.
    """
    limit = _rows_within(BUDGET, sources, plan) if rows is None else rows
    layers = [layer_of(source, plan.norm, plan.dtype, limit) for source in sources]
    if rows is None:
        note = f"only the first {limit:,} rows, to stay within 10 s; --rows N takes N"
        layers = [replace(layer, notes=(*layer.notes, note)) if limit < layer.rows_total else layer for layer in layers]
    return Job(layers, plan, plan.seconds([layer.input.shape for layer in layers]))


def _rows_within(seconds: float, sources: list[Source], plan: Plan) -> int:
    """Return how many rows of each source fit into that time, tens of them, and at least one. It grows linearly."""
    none, one = (plan.seconds([(rows, source.shape[1]) for source in sources]) for rows in (0, 1))
    rows = max(1, int((seconds - none) / (one - none)))
    return rows - rows % 10 if rows > 100 else rows
