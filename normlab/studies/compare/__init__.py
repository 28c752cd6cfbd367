"""Answer whether recomputing from the saved output is as good as saving the input, on given data: `normlab compare`.

Each layer runs through the kernels forward and, on three paths, backward (`normlab.studies.compare.passes`), and its
numbers become a report with a verdict. Called by `normlab.cli`, drawn by `normlab.studies.compare.report`; nothing is
printed here.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from normlab import oracle
from normlab.studies.compare.measure import Error
from normlab.studies.compare.passes import PATHS, Backward, Forward, Pass, run_backward, run_forward
from normlab.studies.compare.plan import Job, Plan
from normlab.studies.compare.traffic import Layer
from normlab.studies.compare.verdict import Verdict, judge, reason

PASSES = 1 + len(PATHS)  # of a layer
AT_RISK = 10.0  # a channel whose recompute bound exceeds its saved-input bound by this factor


@dataclass(frozen=True)
class LayerReport:
    """One layer's numbers.

    `channels_at_risk`: columns of grad_input whose largest recompute bound exceeds AT_RISK times their largest
    saved-input bound. `kept_columns`: columns whose x̂ the exact path has kept.
    """

    name: str
    rows: int
    rows_total: int
    columns: int
    eps: float
    output: Error
    saved_input: Backward
    recomputed: Backward
    exact: Backward
    smallest_gamma: float
    channels_at_risk: int
    kept_columns: int
    verdict: Verdict
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """The whole answer. `seconds` is wall-clock time, imports not counted."""

    plan: Plan
    layers: list[LayerReport]
    seconds: float

    @property
    def within_bounds(self) -> bool:
        """Return True if every error is within its bound."""
        return all(layer.verdict.kind != "bound_exceeded" for layer in self.layers)


def summarise(
    layer: Layer, plan: Plan, forward: Forward, saved: Pass, recomputed: Pass, exact: Pass | None
) -> LayerReport:
    """Return one layer's passes as its report; `exact` is None where its launches would be those of recomputing."""
    backwards = saved.backward, recomputed.backward, (exact or recomputed).backward
    at_risk = recomputed.column_bounds / AT_RISK > saved.column_bounds
    roundoff = oracle.unit_roundoff(plan.dtype)
    verdict = judge(forward.error, *backwards, roundoff, reason(layer, at_risk, plan.dtype))
    rows, columns = layer.input.shape
    return LayerReport(
        name=layer.name,
        rows=rows,
        rows_total=layer.rows_total,
        columns=columns,
        eps=layer.eps,
        output=forward.error,
        saved_input=backwards[0],
        recomputed=backwards[1],
        exact=backwards[2],
        smallest_gamma=float(np.abs(layer.weight).min()),
        channels_at_risk=int(at_risk.sum()),
        kept_columns=forward.kept.columns.size,
        verdict=verdict,
        notes=layer.notes,
    )


def run(job: Job, advance: Callable[[], None] = lambda: None) -> Report:
    """Run every layer's passes. `advance` is called after each pass, `PASSES * len(job.layers)` times."""
    began = time.perf_counter()
    reports = []
    for layer in job.layers:
        forward = run_forward(layer, job.plan)
        advance()
        backwards: list[Any] = []
        for path in PATHS:
            backwards.append(run_backward(layer, job.plan, forward, path))
            advance()
        reports.append(summarise(layer, job.plan, forward, *backwards))
    return Report(job.plan, reports, time.perf_counter() - began)
